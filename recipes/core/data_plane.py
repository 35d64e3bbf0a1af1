"""Read and write the rows of a step in verl's data plane (TransferQueue); no other module calls it.

A row is one response. Its key is `{uid}_{session}_{index}`: the prompt in this step, the response to it, and the part
of a response that verl cut in several. A batch (`KVBatchMeta`) holds keys and tags; the fields stay in the queue until
they are read. verl fills a batch up to whole mini-batches with padding rows, whose tag says so.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import NonTensorData, TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta

from recipes.core.groups import session_of, uid_of

__all__ = ["TRAIN", "KVBatchMeta", "session_of", "uid_of"]

TRAIN = "train"
"""The partition of the rows that a step trains on."""
REWARDS = "rm_scores"


def read(batch: KVBatchMeta, *fields: str, keys: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Read fields of a batch, row by row.

    Args:
        fields: names; one that no row has is left out of the result. None reads all.
        keys: the rows to read, in this order; all of the batch when None.

    Returns:
        For each field a list with a tensor or an object of Python for each row.
    """
    keys = batch.keys if keys is None else list(keys)
    if not keys:
        return {name: [] for name in fields}
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(fields) or None)
    return {name: _rows(data[name]) for name in data.keys() if not fields or name in fields}


def write(batch: KVBatchMeta, fields: Mapping[str, Sequence[Tensor]], keys: Sequence[str] | None = None) -> KVBatchMeta:
    """Replace or add fields: for each name one tensor for each row of the batch, or of `keys`.

    Returns:
        The batch with the fields known to it; the batch itself when only some of its rows were written.
    """
    chosen = batch.keys if keys is None else list(keys)
    if not chosen:
        return batch
    content = TensorDict({name: jagged(rows) for name, rows in fields.items()}, batch_size=len(chosen))
    meta = tq.kv_batch_put(keys=chosen, partition_id=batch.partition_id, fields=content)
    if keys is not None:
        return batch
    meta.extra_info = {**(batch.extra_info or {}), **(meta.extra_info or {})}
    return meta


def write_rewards(batch: KVBatchMeta, rewards: Mapping[str, float]) -> None:
    """Put the rewards of the named rows on the last token of their responses; other rows stay as they are."""
    keys = [key for key in batch.keys if key in rewards]
    lengths = [len(row) for row in read(batch, REWARDS, keys=keys)[REWARDS]]
    write(batch, {REWARDS: on_last_token([rewards[key] for key in keys], lengths)}, keys=keys)


def clear(partition: str, keys: Iterable[str]) -> None:
    """Remove rows from the data plane."""
    if keys := list(dict.fromkeys(keys)):
        tq.kv_clear(keys=keys, partition_id=partition)


def select(batch: KVBatchMeta, keep: Collection[str] | Callable[[str], bool]) -> KVBatchMeta:
    """Select rows by key, or by a test of the key, in the batch's order; nothing leaves the data plane."""
    passes = keep if callable(keep) else set(keep).__contains__
    chosen = [(key, tag) for key, tag in zip(batch.keys, batch.tags, strict=True) if passes(key)]
    return KVBatchMeta(
        partition_id=batch.partition_id,
        keys=[key for key, _ in chosen],
        tags=[tag for _, tag in chosen],
        extra_info=dict(batch.extra_info or {}),
    )


def join(batches: Sequence[KVBatchMeta]) -> KVBatchMeta:
    """Join batches of one partition, with the first one's extra information."""
    return KVBatchMeta(
        partition_id=batches[0].partition_id,
        keys=[key for batch in batches for key in batch.keys],
        tags=[tag for batch in batches for tag in batch.tags],
        extra_info=dict(batches[0].extra_info or {}),
    )


def is_padding(tag: Mapping[str, Any]) -> bool:
    """Whether verl added the row to fill a batch up to whole mini-batches."""
    return bool(tag.get("is_padding", False))


def real_keys(batch: KVBatchMeta) -> list[str]:
    """Keys of a batch without its padding rows."""
    return [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not is_padding(tag)]


def _rows(column: Any) -> list[Any]:
    if isinstance(column, Tensor):
        return list(column.unbind())
    return [row.data if isinstance(row, NonTensorData) else row for row in column]


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
