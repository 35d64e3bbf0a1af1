"""Keep the linear weights of a CPU engine in place, so that a trainer can reload them.

Symptom: the first weight sync into a vLLM CPU engine fails: ``'Parameter' object has no attribute 'weight_loader'``.
Trigger: ``dispatch_cpu_unquantized_gemm`` packs each linear weight into a oneDNN or AMX handle and replaces
``layer.weight`` by an empty parameter; the language-model head keeps its weight but computes from the packed copy.
Why the patch is safe: ``torch.nn.functional.linear`` on the live weight is vLLM's own fallback for CPUs without oneDNN.
"""

from __future__ import annotations

import logging

import torch

from vllm_patches import guard
from vllm_patches.upstream import is_replaced, replaces

logger = logging.getLogger(f"vllm.{__name__}")


def keep_weights_in_place() -> bool:
    """Make 2-D linear layers of a CPU engine compute from ``layer.weight`` itself; True when the patch is in force.

    Does nothing, and returns False, on any other platform. Idempotent.

    Raises:
        vllm_patches.guard.UnsupportedVllmError: the upstream function is not the one this patch was written for.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        logger.warning("VERL_DUETS_CPU=1 has no effect on the linear layers: the platform is %s", current_platform)
        return False

    from vllm.model_executor.layers import utils

    if is_active():
        return True
    guard.require("cpu_linear")
    upstream = utils.dispatch_cpu_unquantized_gemm

    @replaces(upstream)
    def dispatch_in_place(layer: torch.nn.Module, remove_weight: bool) -> None:
        if layer.weight.is_meta or layer.weight.ndim != 2:
            upstream(layer, remove_weight)
            return
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch_in_place
    return True


def is_active() -> bool:
    """Whether the patch is in force in this process."""
    from vllm.model_executor.layers import utils

    return is_replaced(utils.dispatch_cpu_unquantized_gemm)
