"""Rows of different lengths: one tensor per response, verl's jagged batches, and padded tables."""

from collections.abc import Sequence

import torch
from torch import Tensor


def jagged(rows: Sequence[Tensor]) -> Tensor:
    """Join rows into one jagged nested tensor, as verl's data plane holds them."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def padded(rows: Sequence[Tensor], value: float = 0.0) -> Tensor:
    """Pad rows on the right to a `(B, T)` table."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


def unpadded(table: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Cut the rows of a right-padded `(B, T)` table to their lengths."""
    return [row[:length] for row, length in zip(table, lengths, strict=True)]


def on_last_token(rewards: Sequence[float], lengths: Sequence[int]) -> list[Tensor]:
    """Place each response's reward on its last token, 0 elsewhere.

    Raises:
        ValueError: an empty response, which has no token to carry a reward.
    """
    rows = []
    for reward, length in zip(rewards, lengths, strict=True):
        if length < 1:
            raise ValueError("a response without tokens cannot carry a reward")
        row = torch.zeros(length, dtype=torch.float32)
        row[-1] = reward
        rows.append(row)
    return rows
