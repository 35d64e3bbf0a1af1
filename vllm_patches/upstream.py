"""How a symbol of an upstream package is described, compared with the installed one, and replaced.

Both ledgers are written in these words: :mod:`vllm_patches.guard` for vLLM, :mod:`recipes.upstream.ledger` for verl and
Ray. A ledger maps each part of this project to the upstream symbols that it relies on. Comparing reads code and calls
nothing.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import textwrap
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Literal, Protocol, TypeVar


class Check(Protocol):
    """One thing that must hold of a symbol."""

    def describe(self) -> str:
        """What is expected."""

    def fault(self, target: Any) -> str | None:
        """What was found instead; None when the symbol is as expected."""


@dataclasses.dataclass(frozen=True)
class Signature:
    """A callable whose parameter names are exactly these, in this order, separated by spaces (`self` included)."""

    parameters: str

    def describe(self) -> str:
        return f"({', '.join(self.parameters.split())})"

    def fault(self, target: Any) -> str | None:
        found = Signature.of(target)
        return None if found == self else found.describe()

    @classmethod
    def of(cls, target: Any) -> Signature:
        """The signature of an installed callable."""
        # Ray adds a tracing parameter to the methods of its actor classes.
        return cls(" ".join(name for name in inspect.signature(target).parameters if name != "_ray_trace_ctx"))


@dataclasses.dataclass(frozen=True)
class Fields:
    """A dataclass, named tuple or message struct that has at least these fields, separated by spaces."""

    names: str

    def describe(self) -> str:
        return f"has fields {', '.join(self.names.split())}"

    def fault(self, target: Any) -> str | None:
        if dataclasses.is_dataclass(target):
            found = {field.name for field in dataclasses.fields(target)}
        else:
            found = set(getattr(target, "__struct_fields__", ()) or getattr(target, "_fields", ()))
        missing = [name for name in self.names.split() if name not in found]
        return f"lacks {', '.join(missing)}" if missing else None


class Source:
    """A function, class or property whose source text holds each of these fragments (white space ignored)."""

    def __init__(self, *fragments: str) -> None:
        self.fragments = fragments

    def describe(self) -> str:
        return "; ".join(f"`{fragment}`" for fragment in self.fragments)

    def fault(self, target: Any) -> str | None:
        text = "".join(inspect.getsource(target).split())
        missing = [fragment for fragment in self.fragments if "".join(fragment.split()) not in text]
        return f"lacks {Source(*missing).describe()}" if missing else None


@dataclasses.dataclass(frozen=True)
class Digest:
    """A function or class whose code, its parameters included, has one of these digests, separated by spaces.

    A digest is 16 hex digits of the syntax tree's SHA-256: comments, layout and docstrings do not count.
    """

    accepted: str

    def describe(self) -> str:
        return f"code of digest {' or '.join(self.accepted.split())}"

    def fault(self, target: Any) -> str | None:
        found = Digest.of(target)
        return None if found.accepted in self.accepted.split() else found.describe()

    @classmethod
    def of(cls, target: Any) -> Digest:
        """The digest of an installed function or class."""
        tree = ast.parse(textwrap.dedent(inspect.getsource(target)))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
                node.body = node.body[1:] or [ast.Pass()]
        return cls(sha256(ast.dump(tree).encode()).hexdigest()[:16])


Needs = Literal["", "vllm", "vllm on a CPU"]


@dataclasses.dataclass(frozen=True)
class Symbol:
    """One upstream symbol.

    Attributes:
        name: "module:attribute.path".
        why: what it is used for, so what breaks when upstream changes it.
        expected: what must hold of it; its presence alone when None.
        needs: that without which it cannot be looked at.
    """

    name: str
    why: str
    expected: Check | None = None
    needs: Needs = ""


Ledger = Mapping[str, tuple[Symbol, ...]]


@dataclasses.dataclass(frozen=True)
class State:
    """What a symbol looks like in the installed package.

    Attributes:
        used_by: the part of this project that relies on it.
        status: "ok", "changed", "missing", or "unused" where it cannot be looked at on this machine.
        detail: a sentence.
    """

    symbol: str
    used_by: str
    status: str
    detail: str

    @property
    def ok(self) -> bool:
        return self.status in ("ok", "unused")


def audit(ledger: Ledger) -> list[State]:
    """Compare each symbol with the installed package; never raises, imports the upstream modules."""
    return [State(symbol.name, used_by, *_examine(symbol)) for used_by, symbols in ledger.items() for symbol in symbols]


def _examine(symbol: Symbol) -> tuple[str, str]:
    if absent := _absent(symbol.needs):
        return "unused", f"not looked at: {absent}"
    # An upstream module may raise anything while it is imported; whatever it is, the symbol is off and says why.
    try:
        found = resolve(symbol.name)
    except Exception as error:
        return "missing", f"not found: {type(error).__name__}: {error}"
    if symbol.expected is not None:
        try:
            fault = symbol.expected.fault(beneath_patches(found))
        except (OSError, TypeError, ValueError) as error:
            fault = f"what cannot be read ({type(error).__name__}: {error})"
        if fault:
            return "changed", f"expected {symbol.expected.describe()}, found {fault}"
    return "ok", "as expected, patched by this project" if is_replaced(found) else "as expected"


def _absent(needs: Needs) -> str | None:
    if needs and importlib.util.find_spec("vllm") is None:
        return "vllm is not installed"
    if needs == "vllm on a CPU":
        from vllm.platforms import current_platform

        return None if current_platform.is_cpu() else "vllm does not run on a CPU here"
    return None


def resolve(name: str) -> Any:
    """The object that "module:attribute.path" names, properties as they stand in their class.

    Raises:
        ImportError, AttributeError: there is none.
    """
    module, _, path = name.partition(":")
    attribute, *rest = path.split(".")
    found = getattr(importlib.import_module(module), attribute)
    for part in rest:
        found = inspect.getattr_static(found, part)
    return found.__func__ if isinstance(found, staticmethod | classmethod) else found


def beneath_patches(found: Any) -> Any:
    """The code of a function, class, property or Triton kernel, beneath decorators and replacements."""
    # Triton's compiler and its interpreter both keep a kernel's function as `fn`; without Triton it is the function.
    code: Any = found.fget if isinstance(found, property) else getattr(found, "fn", found)
    return inspect.unwrap(code)


Replacement = TypeVar("Replacement", bound=Callable)


def replaces(upstream: Callable) -> Callable[[Replacement], Replacement]:
    """Decorate what takes the place of an upstream callable: it takes its name and leads back to it."""

    def mark(replacement: Replacement) -> Replacement:
        attributes = () if isinstance(upstream, type) else functools.WRAPPER_UPDATES
        functools.update_wrapper(replacement, upstream, updated=attributes)
        # Not the callable itself: what wraps the replacement copies its attributes, and Ray would pickle it by value.
        vars(replacement)["replaces"] = f"{upstream.__module__}.{upstream.__qualname__}"
        return replacement

    return mark


def is_replaced(found: Any) -> bool:
    """Whether this is a replacement of ours, or a property with one: patching again is needless."""
    return hasattr(found.fget if isinstance(found, property) else found, "replaces")
