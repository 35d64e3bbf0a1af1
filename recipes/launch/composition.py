"""Compose a recipe's config on verl's own ``ppo_trainer``, and say in one sentence what is wrong with an override."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from recipes.errors import ConfigError


def our_name(key: str, published: Mapping[str, str]) -> str | None:
    """What a key or flag of the published code is called here; None where it is none."""
    return published.get(key.lstrip("-+").partition("=")[0].rpartition(".")[2])


VERL_CONFIG = "pkg://verl.trainer.config"
SHARED_CONFIG = "pkg://recipes.core.config"
# Nodes of verl's tree that hold keys for somebody else (an engine, Ray, a model config, a user's function).
FREE_FORM = re.compile(r"(^|\.)((?!val_kwargs)\w*kwargs|override_config|ray_init|env_vars|\w*custom\w*|extra\w*)(\.|$)")


def flatten(config: DictConfig | ListConfig) -> dict[str, object]:
    """Dotted leaf keys and their values, interpolations left as they are written."""
    return dict(_leaves(OmegaConf.to_container(config, resolve=False), ""))


def _leaves(node: Mapping, prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _with_its_choices(config: DictConfig) -> DictConfig:
    """Put in what the yaml files take from the choice of groups (`${hydra:runtime.choices.scale}`).

    Hydra keeps one such choice per process, so it is read now, and Hydra's own node is dropped.
    """
    HydraConfig.instance().set_config(config)
    for key, value in flatten(config).items():
        if isinstance(value, str) and "${hydra:" in value and not key.startswith("hydra."):
            OmegaConf.update(config, key, OmegaConf.select(config, key))
    with open_dict(config):
        del config["hydra"]
    return config


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _refusal(error: Exception, known: Iterable[str], published: Mapping[str, str]) -> ConfigError:
    """The cause at the bottom of Hydra's chain, with the nearest known key when a key is unknown."""
    text, cause = str(error), error.__cause__
    if missing := re.search(r"Could not override '([^']+)'", text):
        key = missing.group(1)
        if cause is not None and "not in struct" not in str(cause) and "is not in" not in str(cause):
            return ConfigError(f"{key}: {_first_line(cause)}", key)
        if ours := our_name(key, published):
            return ConfigError(f"unknown key {key!r}: here it is {ours}", key)
        near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
        added = f", or +{key}" if near and key.endswith(f".{near[0]}") else ""
        hint = f"; did you mean {near[0]}{added}?" if near else ""
        return ConfigError(f"unknown key {key!r}: neither verl's ppo_trainer nor this recipe has it{hint}", key)
    message = " ".join(text.partition("Config search path")[0].split())
    merging = cause is not None and message.startswith("Error merging")
    return ConfigError(f"{message}: {_first_line(cause)}" if merging else message)


def compose_config(
    module: str, name: str, overrides: Sequence[str] = (), published: Mapping[str, str] = MappingProxyType({})
) -> DictConfig:
    """Compose ``name`` from the yaml files of the package ``module`` over verl's, with Hydra overrides.

    A key among ``published`` is refused with its name here.

    Raises:
        ConfigError: an override does not parse, or names a key or an option that does not exist.
    """
    for override in overrides:
        try:
            OverridesParser.create().parse_override(override)
        except HydraException as error:
            key, _, value = override.partition("=")
            hint = f"; a value with special characters stands in quotes: {key}=\"'{value}'\"" if key and value else ""
            raise ConfigError(f"cannot read {override!r} as key=value: {_first_line(error)}{hint}", key) from error
    GlobalHydra.instance().clear()
    path = f"hydra.searchpath=[{VERL_CONFIG},{SHARED_CONFIG}]"
    try:
        with initialize_config_module(module, version_base=None):
            return _with_its_choices(compose(config_name=name, overrides=[path, *overrides], return_hydra_config=True))
    except (HydraException, OmegaConfBaseException) as error:
        known_keys: list[str] = []
        if "Could not override" in str(error):
            with initialize_config_module(module, version_base=None):
                selections = [item for item in overrides if "." not in item.partition("=")[0]]
                try:
                    known_keys = list(flatten(compose(config_name=name, overrides=[path, *selections])))
                except (HydraException, OmegaConfBaseException):
                    known_keys = []
        raise _refusal(error, known_keys, published) from error


@cache
def verl_defaults() -> DictConfig:
    """verl's ``ppo_trainer`` as it ships; composed once, and read-only."""
    GlobalHydra.instance().clear()
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(config_name="ppo_trainer")
    OmegaConf.set_readonly(config, True)
    return config


def difference(config: DictConfig, defaults: DictConfig) -> dict[str, tuple[object, object]]:
    """Leaf keys whose value differs, as key -> (verl's default, ours); a key verl does not have defaults to None."""
    ours, theirs = flatten(config), flatten(defaults)
    return {key: (theirs.get(key), value) for key, value in ours.items() if theirs.get(key) != value}


def refuse_unknown_additions(
    overrides: Sequence[str],
    defaults: DictConfig,
    own_blocks: Sequence[str],
    published: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Refuse ``+key=value`` where verl would ignore the key, or fail on it minutes later inside a worker.

    Additions are welcome in the recipe's own blocks, in free-form nodes (``*_kwargs``, ``override_config``,
    ``ray_init``, ...) and wherever the dataclass behind a node has the field.

    Raises:
        ConfigError: with the key and the nearest known one.
    """
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if not (override.is_add() or override.is_force_add()) or "." not in override.key_or_group:
            continue
        key = override.key_or_group
        parent, _, leaf = key.rpartition(".")
        if FREE_FORM.search(parent) or any(key.startswith(f"{block}.") for block in own_blocks):
            continue
        if OmegaConf.select(defaults, key, default=_ABSENT) is not _ABSENT:
            continue
        names = _field_names(defaults, parent)
        if leaf in names:
            continue
        if ours := our_name(key, published):
            raise ConfigError(f"unknown key {key!r}: here it is {ours}", key)
        near = difflib.get_close_matches(leaf, names, n=1, cutoff=0.6)
        hint = f"; did you mean {parent}.{near[0]}?" if near else ""
        raise ConfigError(f"unknown key {key!r}: verl has no such setting and would not read it{hint}", key)


_ABSENT = object()


def _field_names(defaults: DictConfig, parent: str) -> list[str]:
    node = OmegaConf.select(defaults, parent, default=None)
    if not isinstance(node, DictConfig):
        return []
    names = list(node)
    if target := node.get("_target_"):
        from hydra.utils import get_class

        cls = get_class(target)
        if is_dataclass(cls):
            names += [field.name for field in fields(cls)]
    return names
