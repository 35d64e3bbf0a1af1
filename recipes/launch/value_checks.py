"""Refuse sizes, shares, switches and names that no run can have, before anything computes with them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Len
from omegaconf import OmegaConf
from pydantic import AfterValidator

from recipes.common.settings import Count, CountOrZero, Finite, NonNegative, PositiveShare, check_value
from recipes.errors import ConfigError
from recipes.launch.composition import FREE_FORM, difference, flatten

Name = Annotated[str, Len(1)]
# As verl's PrecisionType reads them.
Precision = Literal["fp32", "bf16", "fp16", "float32", "bfloat16", "float16", "32", "16", 32, 16]
# verl's other training engines have other keys than these recipes.
Strategy = Literal["fsdp", "fsdp2"]


def _all_or_some(size: int) -> int:
    if size < 1 and size != -1:
        raise ValueError(f"must be -1 for all devices, or at least 1, found {size}")
    return size


KINDS: Mapping[str, Any] = {
    "trainer.nnodes": Count,
    "trainer.n_gpus_per_node": Count,
    "trainer.project_name": Name,
    "trainer.experiment_name": Name,
    "trainer.default_local_dir": Name,
    "trainer.save_freq": int,
    "trainer.test_freq": int,
    "trainer.total_epochs": Count,
    "trainer.total_training_steps": Count | None,
    "trainer.max_actor_ckpt_to_keep": int | None,
    "trainer.max_critic_ckpt_to_keep": int | None,
    "critic.strategy": Strategy,
    "data.train_batch_size": Count,
    "data.max_prompt_length": Count,
    "data.max_response_length": Count,
    "data.train_max_samples": int,
    "data.val_max_samples": int,
}
# Of each policy: a PasoDoble run has two.
POLICY_KINDS: Mapping[str, Any] = {
    "model.path": Name | None,
    "model.lora_rank": CountOrZero | None,
    "model.lora_alpha": NonNegative | None,
    "actor.strategy": Strategy,
    "ref.strategy": Strategy,
    "actor.ppo_mini_batch_size": Count,
    "actor.ppo_epochs": Count,
    "actor.ppo_micro_batch_size_per_gpu": Count | None,
    "actor.ppo_max_token_len_per_gpu": Count | None,
    "actor.kl_loss_coef": NonNegative | None,
    "actor.fsdp_config.param_offload": bool | None,
    "actor.fsdp_config.optimizer_offload": bool | None,
    "rollout.dtype": Literal["auto", "half", "float16", "bfloat16", "float", "float32"],
    "rollout.n": Count,
    "rollout.temperature": NonNegative,
    "rollout.gpu_memory_utilization": PositiveShare,
    "rollout.tensor_model_parallel_size": Count,
    "rollout.data_parallel_size": Count,
    "rollout.pipeline_model_parallel_size": Count,
    "rollout.max_model_len": Count | None,
    "rollout.max_num_seqs": Count | None,
    "rollout.max_num_batched_tokens": Count | None,
    "rollout.log_prob_micro_batch_size_per_gpu": Count | None,
    "rollout.log_prob_max_token_len_per_gpu": Count | None,
    "rollout.val_kwargs.n": Count,
}
# Of each role's FSDP.
ENGINE_KINDS: Mapping[str, Any] = {
    "model_dtype": Precision,
    "mixed_precision": dict | None,
    "mixed_precision.param_dtype": Precision,
    "fsdp_size": Annotated[int, AfterValidator(_all_or_some)],
}
ENGINES = ("actor.fsdp_config", "ref.fsdp_config")
POLICIES = ("actor_rollout_ref", "proposer.actor_rollout_ref")
# Text in verl's defaults that may be a list, and the list that may be text.
TEXT_OR_LIST = ("train_files", "val_files", "target_modules", "logger")


def check_kinds(config: Any, defaults: Any) -> None:
    """Refuse a value of another kind than verl's default has, and a key of verl's that was taken out.

    verl looks at few of its values: a word for a number ends a worker minutes later, and the word "false" switches on.
    A null, here or in verl's defaults, goes with everything but a block.

    Raises:
        ConfigError: with the first such key.
    """
    check_size_of_gpu(config)  # which other values are looked up by
    ours, theirs = flatten(config), flatten(defaults)
    blocks = {key[:end] for key in ours for end, letter in enumerate(key) if letter == "."}
    for key in sorted(theirs.keys() - ours.keys() - blocks):
        if FREE_FORM.search(key):
            continue
        above = [key[:end] for end, letter in enumerate(key) if letter == "."]
        for block in above:
            if block in ours:
                raise ConfigError(f"{block} must be a block of settings, found {ours[block]!r}")
        raise ConfigError(f"{key} was taken out, and verl reads it: leave it in, with null for no value")
    _check_like(config, defaults, sorted(difference(config, defaults)), "")
    proposer = config.get("proposer")
    if proposer is not None:
        if not OmegaConf.is_dict(proposer):
            raise ConfigError(f"proposer must be a block of settings, found {proposer!r}")
        _check_like(proposer, defaults, sorted(flatten(proposer)), "proposer.")


def _check_like(config: Any, defaults: Any, keys: list[str], prefix: str) -> None:
    for key in keys:
        value, default = _value(config, key), _value(defaults, key)
        if value is None or default is None:
            continue
        leaf = key.rpartition(".")[2]
        if isinstance(default, bool):
            kind: Any = bool
        elif isinstance(default, int | float):
            kind = Finite
        elif leaf in TEXT_OR_LIST:
            kind = str if isinstance(value, str) else list
        elif leaf.endswith("dtype") and isinstance(value, int):
            continue  # verl also takes 16 and 32
        elif isinstance(default, str):
            kind = str
        else:
            kind = type(default)
        check_value(kind, value, f"{prefix}{key}")


def _value(config: Any, key: str) -> Any:
    """What a key stands for, interpolations resolved; None where it is not there or has no value yet."""
    value = OmegaConf.select(config, key, throw_on_missing=False)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def check_values(config: Any) -> None:
    """Look at every key above that the config has.

    Raises:
        ConfigError: with the first key whose value is of another kind, what it must be, and what was found.
    """
    kinds = dict(KINDS)
    for policy in POLICIES:
        kinds |= {f"{policy}.{key}": kind for key, kind in POLICY_KINDS.items()}
    for engine in ("critic.fsdp", *(f"{policy}.{name}" for policy in POLICIES for name in ENGINES)):
        kinds |= {f"{engine}.{key}": kind for key, kind in ENGINE_KINDS.items()}
    for key, kind in kinds.items():
        node, _, leaf = key.rpartition(".")
        parent = OmegaConf.select(config, node)
        if OmegaConf.is_dict(parent) and leaf in parent:
            value = parent[leaf]
            check_value(kind, OmegaConf.to_container(value) if OmegaConf.is_config(value) else value, key)


def check_size_of_gpu(config: Any) -> None:
    """Refuse a size of the one GPU for which `config/one_gpu` has no settings.

    Raises:
        ConfigError: naming the sizes there are.
    """
    one_gpu = config.get("one_gpu")
    if one_gpu is not None and one_gpu.size not in one_gpu.sizes:
        sizes = sorted(int(name.removeprefix("gb")) for name in one_gpu.sizes)
        raise ConfigError(
            f"one_gpu.gb (or GPU_GB) must be one of {', '.join(map(str, sizes))}, found {one_gpu.gb}: take the largest "
            "that the GPU has"
        )
