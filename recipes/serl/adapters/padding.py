"""Padding rows for batches that already have advantages."""

import torch

from recipes.core import data_plane
from recipes.core.data_plane import KVBatchMeta

# What verl computes for each response token after sampling.
TOKEN_FIELDS = (
    "old_log_probs",
    "log_probs",
    "entropy",
    "self_certainty",
    "ref_log_prob",
    "token_level_rewards",
    "advantages",
    "returns",
)


def reset_padding(batch: KVBatchMeta) -> None:
    """Set the padding rows of `batch` to zeros of their own length.

    verl makes them from a copy of a real row and resets what sampling wrote; log-probs and advantages would keep the
    length of the row they came from.
    """
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if data_plane.is_padding(tag)]
    if not keys:
        return
    found = data_plane.read(batch, keys=keys)
    zeros = [torch.zeros(len(response)) for response in found["responses"]]
    data_plane.write(batch, {name: zeros for name in TOKEN_FIELDS if name in found}, keys=keys)
