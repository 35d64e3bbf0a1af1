"""Refuse adapter settings (LoRA) that verl would read at one end only, or notice after minutes."""

from typing import Any

from recipes.errors import ConfigError
from vllm_patches.tandem.weight_sharing import Senior

MODEL, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"


def adapter_rank(config: Any) -> int:
    """Rank of the actor's adapters, 0 for training all weights."""
    return int(config.actor_rollout_ref.model.get("lora_rank") or 0)


def tandem_senior(group: Any) -> Senior:
    """What a tandem engine of the roles in `group` (`actor_rollout_ref`) will find its senior to be."""
    model, rollout = group.model, group.rollout
    lora = model.get("lora") or {}
    return Senior(
        model=model.path,
        adapters=((model.get("lora_rank") or 0) > 0 or (lora.get("rank") or 0) > 0) and not lora.get("merge"),
        load_format=rollout.load_format,
        dtype=rollout.dtype,
        quantization=rollout.get("quantization"),
    )


def check_adapters(config: Any) -> None:
    """Every check of this module; a PasoDoble run's Proposer is looked at, too.

    Raises:
        ConfigError: with the key and what to set.
    """
    trees = {"": config, "proposer.": config.get("proposer")}
    for prefix, tree in trees.items():
        if tree is not None and tree.get("actor_rollout_ref") is not None:
            _check(tree, prefix)
    critic = config.critic.get("model") or {}
    if (critic.get("lora_rank") or 0) > 0:
        _refuse_export(config.critic, "critic")


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


def _refuse_export(node: Any, key: str) -> None:
    contents = (node.get("checkpoint") or {}).get("save_contents") or []
    if "hf_model" in contents:
        raise ConfigError(
            f"{key}.checkpoint.save_contents has hf_model, and with adapters verl would write a model folder that "
            "loads as random weights: leave it out, and export with python -m recipes.launch.export_adapter",
            f"{key}.checkpoint.save_contents",
        )
