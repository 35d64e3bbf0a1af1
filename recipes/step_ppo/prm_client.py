"""Ask a served PRM for the class probabilities of every token of a sequence of ids, from vLLM's `/pooling`."""

import math
from collections.abc import Sequence
from typing import Any

from reward_fns.endpoint import Endpoint

Probabilities = list[list[float]]


def read_probabilities(reply: Any, length: int) -> Probabilities:
    """Read the (length, K + 1) probabilities in a reply of `/pooling`.

    Raises:
        ValueError, LookupError, TypeError: anything else than one distribution for each of `length` tokens.
    """
    rows = reply["data"][0]["data"]
    if len(rows) != length:
        raise ValueError(f"expected {length} rows of probabilities, found {len(rows)}")
    for row in rows:
        if len(row) != len(rows[0]) or not all(math.isfinite(p) and -1e-4 <= p <= 1 + 1e-4 for p in row):
            raise ValueError(f"expected {len(rows[0])} probabilities per token, found {str(row)[:80]}")
        # bf16 rounds each probability by up to 2^-9.
        if abs(sum(row) - 1) > 0.03:
            raise ValueError(f"the probabilities of a token add up to {sum(row):.3f}: is an activation off?")
    return rows


async def token_probabilities(endpoint: Endpoint, ids: Sequence[int]) -> Probabilities:
    """Ask for the class probabilities at each of `ids`; ids are sent, never text, so that positions stay exact.

    Raises:
        EndpointError: after bounded retries.
    """
    body = {"model": endpoint.settings.model, "input": [list(ids)], "task": "token_classify"}
    return await endpoint.post("/pooling", body, lambda reply: read_probabilities(reply, len(ids)))
