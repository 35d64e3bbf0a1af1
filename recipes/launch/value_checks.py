"""Refuse values of another kind than verl's defaults, before anything computes with them."""

from typing import Any

from omegaconf import OmegaConf

from recipes.core.settings import Count, Finite, check_value
from recipes.errors import ConfigError
from recipes.launch.composition import FREE_FORM, difference, flatten

# Text in verl's defaults that may be a list, and the list that may be text.
TEXT_OR_LIST = ("train_files", "val_files", "target_modules", "logger")
# What the launcher itself divides by.
COUNTS = (
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "data.train_batch_size",
    *(f"actor_rollout_ref.actor.{name}" for name in ("ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu")),
    *(f"actor_rollout_ref.{role}.log_prob_micro_batch_size_per_gpu" for role in ("rollout", "ref")),
    "actor_rollout_ref.rollout.n",
    *(f"actor_rollout_ref.rollout.{kind}_parallel_size" for kind in ("tensor_model", "data", "pipeline_model")),
)


def check_kinds(config: Any, defaults: Any) -> None:
    """Refuse a value of another kind than verl's default has, and a key of verl's that was taken out.

    verl looks at few of its values: a word for a number ends a worker minutes later, and the word "false" switches on.
    A null, here or in verl's defaults, goes with everything but a block.

    Raises:
        ConfigError: with the first such key.
    """
    ours, theirs = flatten(config), flatten(defaults)
    blocks = {key[:end] for key in ours for end, letter in enumerate(key) if letter == "."}
    for key in sorted(theirs.keys() - ours.keys() - blocks):
        if FREE_FORM.search(key):
            continue
        above = [key[:end] for end, letter in enumerate(key) if letter == "."]
        for block in above:
            if block in ours:
                raise ConfigError(f"{block} must be a block of settings, found {ours[block]!r}", block)
        raise ConfigError(f"{key} was taken out, and verl reads it: leave it in, with null for no value", key)
    check_like(config, defaults, difference(config, defaults))
    for key in COUNTS:
        if (value := OmegaConf.select(config, key)) is not None:
            check_value(Count, value, key)


def check_like(config: Any, defaults: Any, keys: Any, prefix: str = "") -> None:
    """Refuse the first of these keys whose value is of another kind than the default's; the prefix is for messages.

    Raises:
        ConfigError: with the key.
    """
    for key in sorted(keys):
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
        else:
            kind = type(default)
        check_value(kind, value, f"{prefix}{key}")


def _value(config: Any, key: str) -> Any:
    """What a key stands for, interpolations resolved; None where it is not there or has no value yet."""
    value = OmegaConf.select(config, key, throw_on_missing=False)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
