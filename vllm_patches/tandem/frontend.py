"""What the front end of a tandem engine needs: the mask on the output, and a config that names the V1 runner."""

from __future__ import annotations

import numpy as np

from vllm_patches.tandem.config import CONFIG_KEY


def add_authorship_property() -> None:
    """Give ``CompletionOutput`` a read-only ``authorship_mask``: one int per token, 1 = senior, 0 = junior.

    None where no mask came: an unfinished streaming output, an engine without tandem. The mask covers the whole
    response, also when the output carries only the last delta of its token ids.
    """
    from vllm.outputs import CompletionOutput

    if not hasattr(CompletionOutput, "authorship_mask"):
        CompletionOutput.authorship_mask = property(_authorship_mask)


def encode_authorship(bits: list[int]) -> np.ndarray:
    """The mask in the shape of vLLM's per-token array channel: bool ``(T, 1, 1)``; real expert ids are never bool."""
    return np.asarray(bits, dtype=np.bool_).reshape(-1, 1, 1)


def _authorship_mask(output) -> list[int] | None:
    channel = output.routed_experts
    if channel is None or channel.dtype != np.bool_:
        return None
    return channel.reshape(-1).astype(int).tolist()


def pin_v1_runner() -> None:
    """Make ``VllmConfig.use_v2_model_runner`` False for engines with a ``tandem`` section in ``additional_config``."""
    from vllm.config import VllmConfig

    upstream = VllmConfig.use_v2_model_runner
    if hasattr(upstream.fget, "upstream"):
        return

    def use_v2_model_runner(config) -> bool:
        return False if is_tandem(config) else upstream.fget(config)

    use_v2_model_runner.upstream = upstream
    VllmConfig.use_v2_model_runner = property(use_v2_model_runner, doc=upstream.__doc__)


def is_tandem(vllm_config) -> bool:
    """Whether this engine was asked to decode in tandem."""
    additional = vllm_config.additional_config
    return isinstance(additional, dict) and CONFIG_KEY in additional
