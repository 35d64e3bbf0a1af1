"""Refuse values of a run's config, before anything starts, with one sentence each."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipes.errors import ConfigError


def require(config: DictConfig, key: str, *allowed: Any, why: str) -> None:
    """Refuse a value that is not one of `allowed`.

    Args:
        key: dotted name; a key that is not there counts as null.
        why: the reason, with which the sentence begins.

    Raises:
        ConfigError: with the reason, what to set and what was found.
    """
    found = OmegaConf.select(config, key)
    if found not in allowed:
        raise ConfigError(f"{why}: set {key}={' or '.join(map(_shown, allowed))}, found {_shown(found)}", key)


def require_off(config: DictConfig, *keys: str, why: str) -> None:
    """Refuse switches that are on: any value but false, null, 0 and an empty one.

    Raises:
        ConfigError: as :func:`require`.
    """
    for key in keys:
        if found := OmegaConf.select(config, key):
            off = "false" if found is True else "null"
            raise ConfigError(f"{why}: set {key}={off}, found {_shown(found)}", key)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)
