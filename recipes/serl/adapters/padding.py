"""Padding rows for batches that already have advantages."""

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from recipes.serl.adapters.answering import is_padding

# What verl computes for each response token after sampling.
TOKEN_FIELDS = ("old_log_probs", "log_probs", "entropy", "ref_log_prob", "token_level_rewards", "advantages", "returns")


def reset_padding(batch: KVBatchMeta) -> None:
    """Give the padding rows of `batch` zeros of their own length.

    verl makes them from a copy of a real row and resets what sampling wrote; log-probs and advantages would keep the
    length of the row they came from.
    """
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if is_padding(tag)]
    if not keys:
        return
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id)
    lengths = [len(response) for response in data["responses"].unbind()]
    fields = {
        name: torch.nested.as_nested_tensor([torch.zeros(length) for length in lengths], layout=torch.jagged)
        for name in TOKEN_FIELDS
        if name in data.keys()
    }
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(keys)))
