"""Refuse a faulty tandem request while the client can still be told, through vLLM's hook for logits processors."""

from __future__ import annotations

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessor

from vllm_patches.tandem.config import CONFIG_KEY, check_request


def check_responses(sampling_params: SamplingParams) -> None:
    """Raise ValueError for faulty settings, or for several responses that would have the same authors."""
    given = check_request((sampling_params.extra_args or {}).get(CONFIG_KEY))
    if sampling_params.n > 1 and (sampling_params.seed is None or "request" in given):
        raise ValueError(
            f"n is {sampling_params.n}, and all responses would draw the same author coins; set "
            "SamplingParams.seed and leave 'request' out, or send each response as a request of its own"
        )
    if sampling_params.n > 1 and sampling_params.seed < 0 <= sampling_params.seed + sampling_params.n:
        raise ValueError(
            f"seed is {sampling_params.seed} and n is {sampling_params.n}: vLLM counts the seed up over the responses "
            "and takes -1 for none; start from another seed"
        )


class RequestCheck(LogitsProcessor):
    """Changes no logits; vLLM calls ``validate_params`` in the front end for every request."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for settings that the engine could only answer with an error."""
        check_responses(sampling_params)

    def __init__(self, vllm_config, device: torch.device, is_pin_memory: bool) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update) -> None:
        pass
