"""Legibility: how surprised a partner is by a text, in nats per token."""

from collections.abc import Iterable, Sequence
from math import isfinite


def cross_entropy(log_probs: Sequence[float]) -> float:
    """Mean negative log-probability, in nats per token, that the partner gives to the response's tokens.

    Raises:
        ValueError: no tokens, or a log-probability that is positive or not finite.
    """
    if not log_probs:
        raise ValueError("found a response without tokens; expected at least one")
    faulty = [value for value in log_probs if not isfinite(value) or value > 1e-6]
    if faulty:
        raise ValueError(f"found {len(faulty)} values that are no log-probabilities, such as {faulty[0]}")
    return -sum(log_probs) / len(log_probs)


def mean_cross_entropy(responses: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Cross-entropy over all tokens of all responses, in nats per token, and the number of tokens.

    Every token weighs the same, so long responses weigh more; empty responses have no token and no weight.

    Raises:
        ValueError: no token at all, or a value that is no log-probability.
    """
    total, tokens = 0.0, 0
    for log_probs in responses:
        if log_probs:
            total += cross_entropy(log_probs) * len(log_probs)
            tokens += len(log_probs)
    if not tokens:
        raise ValueError("found no response with tokens; expected at least one")
    return total / tokens, tokens


def response_log_probs(prompt_log_probs: Sequence[object], token_ids: Sequence[int], prompt_tokens: int) -> list[float]:
    """Log-probabilities of the response's tokens, from an engine's per-position answer for prompt and response
    together.

    Args:
        prompt_log_probs: one entry per position: None for the first, else a mapping from token id to a
            log-probability or to an object with `.logprob`, as vLLM answers `prompt_logprobs`.
        token_ids: ids of prompt and response together.
        prompt_tokens: how many of them belong to the prompt.

    Raises:
        ValueError: lengths that differ, or a position without its own token's log-probability.
    """
    if len(prompt_log_probs) != len(token_ids):
        raise ValueError(
            f"found {len(prompt_log_probs)} positions for {len(token_ids)} tokens; expected as many of each"
        )
    found = []
    for position in range(max(prompt_tokens, 1), len(token_ids)):
        entry = (prompt_log_probs[position] or {}).get(token_ids[position])
        if entry is None:
            raise ValueError(f"position {position} has no log-probability for its own token {token_ids[position]}")
        found.append(float(getattr(entry, "logprob", entry)))
    return found
