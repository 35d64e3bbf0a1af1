"""Sampling parameters that the speculative mode cannot honour at the junior's tokens, each refused by name."""

from __future__ import annotations

from vllm import SamplingParams

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
