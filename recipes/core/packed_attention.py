"""Attention over the rows that verl packs into one, on a processor.

Without padding a micro-batch is one row, and sdpa computes every sequence's scores against all others, which its mask
drops: half of a training pass of 16 responses, three quarters of a pass over 32. Here a sequence meets itself alone.
"""

from collections.abc import Callable

import torch

# Tokens times the longest sequence: 1 GB of scores in SmolLM2, which every layer keeps for the backward pass.
MOST_SCORES = 2**20


def within_sequences(sdpa: Callable) -> Callable:
    """transformers' `sdpa_attention_forward`, with a packed row computed as a batch of its sequences.

    A sequence begins where `position_ids` is 0. It keeps its own block of the mask, so that sliding windows stay; what
    is no packed row, has dropout, or more than `MOST_SCORES`, goes to `sdpa`.
    """

    def attend(module, query, key, value, attention_mask, dropout=0.0, scaling=None, position_ids=None, **kwargs):
        sequences = _sequences(query.shape[2], attention_mask, position_ids)
        if sequences is None or dropout:
            options = {"dropout": dropout, "scaling": scaling, "position_ids": position_ids}
            return sdpa(module, query, key, value, attention_mask, **options, **kwargs)
        starts, lengths = sequences
        places = torch.arange(int(lengths.max()))
        inside = places < lengths[:, None]
        cells = (starts[:, None] + places).clamp(max=query.shape[2] - 1)
        # A cell behind its sequence's end is dropped below; until then it attends to all, so as to stay finite.
        mask = attention_mask[0, 0][cells[:, :, None], cells[:, None, :]] & inside[:, None] | ~inside[:, :, None]

        def rows(states: torch.Tensor) -> torch.Tensor:
            """(1, heads, total, size) as (sequences, heads, longest, size)."""
            return states[0].index_select(1, cells.flatten()).unflatten(1, cells.shape).transpose(0, 1)

        # The queries that share a key's head are rows of one product.
        queries = rows(query).unflatten(1, (key.shape[1], -1))
        scores = queries.flatten(2, 3) @ rows(key).transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
        scores = scores.view(*queries.shape[:-1], -1).masked_fill(~mask[:, None, None], float("-inf"))
        output = scores.softmax(-1).flatten(2, 3) @ rows(value)
        output = output.view(*queries.shape[:-1], -1).flatten(1, 2).transpose(1, 2).flatten(0, 1)
        return output.index_select(0, inside.flatten().nonzero()[:, 0])[None], None

    return attend


def _sequences(
    total: int, mask: torch.Tensor | None, position_ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Where the sequences of a packed row begin, and their lengths; None where it is none, or too long."""
    if mask is None or mask.dtype != torch.bool or mask.shape != (1, 1, total, total):
        return None
    if position_ids is None or position_ids.shape != (1, total) or position_ids[0, 0] != 0:
        return None
    starts = (position_ids[0] == 0).nonzero()[:, 0]
    lengths = torch.diff(starts, append=starts.new_tensor([total]))
    return (starts, lengths) if len(starts) > 1 and total * int(lengths.max()) <= MOST_SCORES else None
