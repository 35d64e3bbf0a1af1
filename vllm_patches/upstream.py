"""How an upstream symbol is described and compared with the installed one: signature, fields, or source text.

Comparing reads, it runs nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect


@dataclasses.dataclass(frozen=True)
class Signature:
    """A callable whose parameter names are exactly these, in this order."""

    parameters: tuple[str, ...]

    def describe(self) -> str:
        return f"({', '.join(self.parameters)})"

    def fault(self, target: object) -> str | None:
        found = tuple(inspect.signature(inspect.unwrap(target)).parameters)
        return None if found == self.parameters else f"({', '.join(found)})"


@dataclasses.dataclass(frozen=True)
class Fields:
    """A dataclass, named tuple or message struct that has at least these fields."""

    names: tuple[str, ...]

    def describe(self) -> str:
        return f"has fields {', '.join(self.names)}"

    def fault(self, target: object) -> str | None:
        if dataclasses.is_dataclass(target):
            found = {field.name for field in dataclasses.fields(target)}
        else:
            found = set(getattr(target, "__struct_fields__", ()) or getattr(target, "_fields", ()))
        missing = [name for name in self.names if name not in found]
        return f"lacks {', '.join(missing)}" if missing else None


@dataclasses.dataclass(frozen=True)
class Source:
    """A function, class or property whose source text holds each of these fragments (white space ignored)."""

    fragments: tuple[str, ...]

    def describe(self) -> str:
        return "; ".join(f"`{fragment}`" for fragment in self.fragments)

    def fault(self, target: object) -> str | None:
        target = target.fget if isinstance(target, property) else inspect.unwrap(target)
        text = "".join(inspect.getsource(target).split())
        missing = [fragment for fragment in self.fragments if "".join(fragment.split()) not in text]
        return "lacks " + "; ".join(f"`{fragment}`" for fragment in missing) if missing else None


@dataclasses.dataclass(frozen=True)
class Upstream:
    """One upstream symbol: where it is, which area needs it, what for, and what it must look like.

    ``platform`` is ``cpu`` for a symbol that only vLLM's CPU platform uses.
    """

    symbol: str
    area: str
    why: str
    expected: Signature | Fields | Source
    platform: str = "any"

    def row(self) -> dict[str, str]:
        """The ledger row; ``status`` is ``ok``, ``changed``, ``missing`` or ``unused`` (on this platform)."""
        row = {"symbol": self.symbol, "area": self.area, "why": self.why, "expected": self.expected.describe()}
        if self.platform == "cpu" and not _on_cpu():
            return row | {"found": "not looked at", "status": "unused"}
        try:
            target = _resolve(self.symbol)
        except (ImportError, AttributeError) as error:
            return row | {"found": f"{type(error).__name__}: {error}", "status": "missing"}
        original = _beneath_our_patch(target)
        fault = self.expected.fault(original)
        as_expected = "as expected" if original is target else "as expected, patched by vllm_patches"
        return row | {"found": fault or as_expected, "status": "changed" if fault else "ok"}


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return current_platform.is_cpu()


def _resolve(symbol: str) -> object:
    module_name, _, qualified = symbol.partition(":")
    target: object = importlib.import_module(module_name)
    for part in qualified.split("."):
        target = inspect.getattr_static(target, part)
    return target.__func__ if isinstance(target, staticmethod | classmethod) else target


def _beneath_our_patch(target: object) -> object:
    replacement = target.fget if isinstance(target, property) else target
    return getattr(replacement, "upstream", target)
