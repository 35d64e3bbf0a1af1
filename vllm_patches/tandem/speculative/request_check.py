"""Sampling parameters that the speculative mode cannot honour at the junior's tokens, each refused by name."""

from __future__ import annotations

from vllm import SamplingParams

from vllm_patches.tandem.request_check import RequestCheck

REMEDY = "send the request without it, or to an engine in mode 'lazy'"


def fault_of(params: SamplingParams) -> str | None:
    """A sentence for a request that the speculative mode cannot serve, else None.

    A junior's token is sampled before the text it follows is known to the host, and nobody checks it afterwards; what
    depends on the tokens before it, or on a grammar, would hold for the senior's tokens alone.
    """
    refused = {
        "presence_penalty": params.presence_penalty != 0,
        "frequency_penalty": params.frequency_penalty != 0,
        "repetition_penalty": params.repetition_penalty != 1,
        "bad_words": bool(params.bad_words),
        "allowed_token_ids": params.allowed_token_ids is not None,
        "logit_bias": bool(params.logit_bias),
        "min_p": params.min_p > 0,
        "structured_outputs": params.structured_outputs is not None,
        "logprob_token_ids": bool(params.logprob_token_ids),
        "thinking_token_budget": params.thinking_token_budget is not None,
    }
    found = [name for name, given in refused.items() if given]
    return f"the speculative mode takes no {', '.join(found)}; {REMEDY}" if found else None


class SpeculativeRequestCheck(RequestCheck):
    """``RequestCheck`` of an engine in the speculative mode; looked at in the front end, never run in a worker."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for settings that the engine could only answer with an error."""
        super().validate_params(sampling_params)
        fault = fault_of(sampling_params)
        if fault:
            raise ValueError(fault)
