"""Asking a served PRM: class probabilities of every token of a sequence of ids, from vLLM's `/pooling`."""

import math
from collections.abc import Sequence
from typing import Any

from reward_fns.endpoint import Endpoint

Probabilities = list[list[float]]


def pooling_request(model: str, ids: Sequence[int]) -> dict:
    """Body of a request. Ids are sent, never text, so that positions stay exact."""
    return {"model": model, "input": [list(ids)], "task": "token_classify"}


def read_probabilities(reply: Any, length: int, num_classes: int | None = None) -> Probabilities:
    """The (length, K + 1) probabilities in a reply of `/pooling`.

    Raises:
        ValueError, LookupError, TypeError: anything else than one distribution for each of `length` tokens.
    """
    rows = reply["data"][0]["data"]
    if len(rows) != length:
        raise ValueError(f"expected {length} rows of probabilities, found {len(rows)}")
    classes = num_classes or len(rows[0])
    for row in rows:
        if len(row) != classes or not all(math.isfinite(p) and -1e-4 <= p <= 1 + 1e-4 for p in row):
            raise ValueError(f"expected {classes} probabilities per token, found {str(row)[:80]}")
        # bf16 rounds each probability by up to 2^-9.
        if abs(sum(row) - 1) > 0.03:
            raise ValueError(f"the probabilities of a token add up to {sum(row):.3f}: is an activation off?")
    return rows


async def token_probabilities(
    endpoint: Endpoint, ids: Sequence[int], *, num_classes: int | None = None
) -> Probabilities:
    """Class probabilities at each of `ids`.

    Raises:
        EndpointError: after bounded retries.
    """
    body = pooling_request(endpoint.settings.model, ids)
    return await endpoint.post("/pooling", body, lambda reply: read_probabilities(reply, len(ids), num_classes))
