"""Refuse adapter settings (LoRA) that verl would read at one end only, or notice after minutes."""

from typing import Any

from recipes.core.settings import policies
from recipes.errors import ConfigError

HEAD = "score"
"""What transformers calls a token classifier's head, which a critic's values come from."""
MODEL, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"


def adapter_rank(config: Any) -> int:
    """Rank of the actor's adapters, 0 for training all weights."""
    return int(config.actor_rollout_ref.model.get("lora_rank") or 0)


def check_adapters(config: Any) -> None:
    """Every check of this module, for every policy.

    Raises:
        ConfigError: with the key and what to set.
    """
    for prefix, tree in policies(config).items():
        _check(tree, prefix)
    critic = config.critic.get("model") or {}
    if (critic.get("lora_rank") or 0) > 0:
        _refuse_export(config.critic, "critic")
        targets = critic.get("target_modules")
        if targets != "all-linear" and HEAD not in (targets or ()):
            raise ConfigError(
                f"critic.model.target_modules={targets} leaves the value head out, which would stay random: take "
                f"all-linear, or add {HEAD}",
                "critic.model.target_modules",
            )


def _check(config: Any, prefix: str) -> None:
    group = config.actor_rollout_ref
    model, rank = group.model, adapter_rank(config)
    fsdp = str(group.actor.strategy).startswith("fsdp")
    megatron_rank = int((model.get("lora") or {}).get("rank") or 0)
    if fsdp and megatron_rank > 0:
        raise ConfigError(
            f"{prefix}{MODEL}.lora.rank={megatron_rank} is read by Megatron and by the rollout engine, and FSDP trains "
            f"all weights under it: set {prefix}{MODEL}.lora_rank and lora_alpha",
            f"{prefix}{MODEL}.lora.rank",
        )
    if rank < 0:
        raise ConfigError(f"{prefix}{MODEL}.lora_rank={rank} trains all weights: set 0", f"{prefix}{MODEL}.lora_rank")
    if rank == 0:
        return
    if not model.lora_alpha or model.lora_alpha <= 0:
        key = f"{prefix}{MODEL}.lora_alpha"
        raise ConfigError(f"{key}={model.lora_alpha} switches the adapters off: set it above 0", key)
    if group.rollout.get("layered_summon") and group.rollout.load_format == "dummy":
        raise ConfigError(
            f"{prefix}{ROLLOUT}.layered_summon=true sends adapters alone, and load_format=dummy gives the engine no "
            f"base model: set {prefix}{ROLLOUT}.load_format=auto",
            f"{prefix}{ROLLOUT}.load_format",
        )
    _refuse_export(group.actor, f"{prefix}actor_rollout_ref.actor")
    _check_targets(model, f"{prefix}{MODEL}.target_modules")


def _check_targets(model: Any, key: str) -> None:
    """Refuse names that no module of the model has, and a head that is the embedding, which adapters would untie."""
    targets = model.get("target_modules")
    if isinstance(targets, str) or not targets or (config := _architecture(str(model.path))) is None:
        return
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            skeleton = AutoModelForCausalLM.from_config(config)
    except ValueError:  # no causal language model that transformers knows without the model's own code
        return
    names = {name.rpartition(".")[2] for name, _ in skeleton.named_modules()}
    if unknown := [target for target in targets if target.rpartition(".")[2] not in names]:
        raise ConfigError(f"{key} names {', '.join(unknown)}, and no module of {model.path} is called so", key)
    tied = {"lm_head", "embed_tokens"} & {target.rpartition(".")[2] for target in targets}
    if tied and config.tie_word_embeddings:
        raise ConfigError(
            f"{key} names {', '.join(sorted(tied))}, and {model.path} has one tensor for head and embedding: an "
            "adapter on it is lost or counted twice when it is merged; leave it out",
            key,
        )


def _architecture(path: str) -> Any:
    """The model's config from its folder, None where it is not here."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError):
        return None


def _refuse_export(node: Any, key: str) -> None:
    contents = (node.get("checkpoint") or {}).get("save_contents") or []
    if "hf_model" in contents:
        raise ConfigError(
            f"{key}.checkpoint.save_contents has hf_model, and with adapters verl would write a model folder that "
            "loads as random weights: leave it out, and export with python -m recipes.launch.export_adapter",
            f"{key}.checkpoint.save_contents",
        )
