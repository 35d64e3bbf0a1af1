"""Read a block of a run's config into a frozen dataclass, or refuse it in one sentence.

The dataclass is the whole description: field names are the keys, annotations the types and ranges, `__post_init__` the
rules between fields. pydantic checks the types, strictly: `true` is no number and `"5"` no integer; an integer is a
number, and a list fills a tuple. For ranges use the names below, or `Annotated[int, pydantic.Field(ge=2, le=8)]`; for
choices, `Literal["batch", "prompt"]`; for a nested block, another dataclass::

    @dataclass(frozen=True)
    class SppoSettings:
        eta: Positive = 1.0
        scope: Literal["batch", "prompt"] = "batch"

    settings = read(SppoSettings, config.algorithm.get("sppo"), "algorithm.sppo")
"""

import difflib
import functools
import json
import os
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval
from omegaconf import DictConfig, OmegaConf
from pydantic import AllowInfNan, TypeAdapter, ValidationError

from recipes.errors import ConfigError

T = TypeVar("T")

Finite = Annotated[float, AllowInfNan(False)]
Positive = Annotated[float, AllowInfNan(False), Gt(0)]
Limit = Annotated[float, Gt(0)]
"""Infinity stands for none."""
NonNegative = Annotated[float, AllowInfNan(False), Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]
PositiveShare = Annotated[float, Interval(gt=0, le=1)]
Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]


def policies(config: DictConfig) -> dict[str, DictConfig]:
    """The settings of every policy that a run trains, by the prefix of their keys: the config's own, and those of each
    block that has an `actor_rollout_ref`."""
    blocks = {f"{name}.": node for name, node in config.items_ex(resolve=False) if OmegaConf.is_dict(node)}
    return {"": config} | {prefix: node for prefix, node in blocks.items() if node and "actor_rollout_ref" in node}


def read(cls: type[T], block: Any, name: str) -> T:
    """Read a block of settings.

    Args:
        cls: a dataclass whose annotations are the types and ranges.
        block: a mapping (plain or OmegaConf's); None stands for an empty one.
        name: dotted name of the block, for messages; "" for a whole config.

    Raises:
        ConfigError: an unknown key (with the nearest known one), a missing key, a wrong type, a value out of range, or
            what `__post_init__` refuses.
    """
    plain = {} if block is None else _plain(block, name)
    _refuse_unknown(cls, plain, name)
    try:
        # As JSON, since only there a strict list may fill a tuple.
        return _adapter(cls).validate_json(json.dumps(plain, default=os.fspath), strict=True)
    except ValidationError as error:
        raise ConfigError(_sentence(error, name), _key(error, name)) from error
    except TypeError as error:
        raise ConfigError(f"{name} holds a value that no config can: {error}", name) from error


def check_value(kind: Any, value: Any, name: str) -> None:
    """Refuse a single value that is not of this kind, an annotation as the fields of a block have.

    Raises:
        ConfigError: a wrong type, or a value out of range.
    """
    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        raise ConfigError(_sentence(error, name), _key(error, name)) from error


def seconds_from(variable: str, default: float, kind: Any = Positive) -> float:
    """A number of seconds from the environment, or the default.

    Raises:
        ConfigError: the variable is no positive number, or not of this kind.
    """
    try:
        return _adapter(kind).validate_python(os.environ.get(variable, default))
    except ValidationError as error:
        raise ConfigError(_sentence(error, variable), variable) from error


def _plain(block: Any, name: str) -> dict[str, Any]:
    if type(block).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        block = OmegaConf.to_container(block, resolve=True)
    if not isinstance(block, Mapping):
        raise ConfigError(f"{name} must be a block of settings, found {block!r}", name)
    return dict(block)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind)


def _refuse_unknown(cls: type, block: Mapping[str, Any], name: str) -> None:
    """Refuse unknown keys at every level before reading values: a mistyped key often explains a missing one."""
    names = [entry.name for entry in fields(cls)]
    for key in block:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            where = _dotted(name, key)
            raise ConfigError(f"unknown key {where}{hint} (known: {', '.join(names)})", where)
    kinds = get_type_hints(cls)
    for key, value in block.items():
        nested = next((kind for kind in _alternatives(kinds[key]) if is_dataclass(kind)), None)
        if nested is not None and isinstance(value, Mapping):
            _refuse_unknown(nested, value, _dotted(name, key))


def _dotted(*parts: Any) -> str:
    return ".".join(str(part) for part in parts if part != "")


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _key(error: ValidationError, name: str) -> str:
    first = error.errors(include_url=False)[0]
    own = getattr(first.get("ctx", {}).get("error"), "key", "")
    return own or _dotted(name, *first["loc"])


def _sentence(error: ValidationError, name: str) -> str:
    first = error.errors(include_url=False)[0]
    where = _key(error, name)
    if first["type"] == "value_error":
        own = str(first["ctx"]["error"])
        return own if own.startswith(name) else f"{where}: {own}"
    if first["type"] == "missing":
        return f"{where} is not set"
    rule = first["msg"].removeprefix("Input should ")
    return f"{where} must {rule}, found {first['input']!r}" if rule != first["msg"] else f"{where}: {rule}"


def require(config: DictConfig, key: str, *allowed: Any, why: str) -> None:
    """Refuse a value that is not one of `allowed`.

    Args:
        key: dotted name; a key that is not there counts as null.
        why: the reason, with which the sentence begins.

    Raises:
        ConfigError: with the reason, what to set and what was found.
    """
    value = OmegaConf.select(config, key)
    if value not in allowed:
        raise ConfigError(f"{why}: set {key}={' or '.join(map(_shown, allowed))}, found {_shown(value)}", key)


def require_off(config: DictConfig, *keys: str, why: str) -> None:
    """Refuse switches that are on: any value but false, null, 0 and an empty one.

    Raises:
        ConfigError: as :func:`require`.
    """
    for key in keys:
        if value := OmegaConf.select(config, key):
            off = "false" if value is True else "null"
            raise ConfigError(f"{why}: set {key}={off}, found {_shown(value)}", key)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)
