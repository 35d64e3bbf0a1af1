"""verl's checkpoint engine over gloo: sends weights from the training workers to separate rollout workers on a CPU.

verl's own backends each need an accelerator's libraries (cupy, nixl, mooncake, ...); this one needs torch alone.
``actor_rollout_ref.rollout.checkpoint_engine`` chooses it: ``backend=gloo`` and
``custom_backend_module=recipes.common.gloo_checkpoint_engine``.
"""

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import ray
import torch
from torch.distributed import ProcessGroupGloo, TCPStore
from verl.checkpoint_engine.base import (
    CheckpointEngine,
    CheckpointEngineRegistry,
    TensorMeta,
    merge_weight_chunks,
    split_weight_chunks,
)
from verl.workers.rollout.utils import ensure_async_iterator

from recipes.errors import WeightTransferError


@CheckpointEngineRegistry.register("gloo")
class GlooCheckpointEngine(CheckpointEngine):
    """Broadcasts buckets of weights from actor rank 0 to all rollout workers.

    The other actor ranks send nothing; they only help to gather each weight. The group is built for one update, so that
    nothing of an update outlives it.

    Args:
        bucket_size: bytes of one broadcast; a larger weight travels in pieces and is put together again.
        is_master: whether this is actor rank 0.
        timeout_seconds: longest wait for another worker of the group (`engine_kwargs.gloo.timeout_seconds`). It is
            longer than `VERL_DUETS_SYNC_TIMEOUT`, so that an engine that does not load its weights is named first.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, timeout_seconds: float = 300.0) -> None:
        self.bucket_size = bucket_size
        self.is_master = is_master
        self.timeout = timedelta(seconds=timeout_seconds)
        self.store: TCPStore | None = None
        self.group: ProcessGroupGloo | None = None
        self.rank: int | None = None

    def prepare(self) -> tuple[str, int] | None:
        """Open the store on actor rank 0 and return its host and port."""
        if not self.is_master:
            return None
        host = ray.util.get_node_ip_address().strip("[]")
        self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=self.timeout)
        return host, self.store.port

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[tuple[str, int] | None]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Number actor rank 0 as 0 and the rollout workers after it; other actor ranks stay outside (-1)."""
        world_size = 1 + rollout_world_size

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {
                "rank": ranks,
                "world_size": [world_size] * len(ranks),
                "meeting_point": [metadata[0]] * len(ranks),
            }

        return arguments([0] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, world_size)))

    def init_process_group(self, rank: int, world_size: int, meeting_point: tuple[str, int]) -> None:
        self.rank = rank
        if rank < 0:
            return
        try:
            if not self.is_master:
                self.store = TCPStore(*meeting_point, is_master=False, wait_for_workers=False, timeout=self.timeout)
            self.group = ProcessGroupGloo(self.store, rank, world_size, self.timeout)
        except RuntimeError as error:
            raise WeightTransferError(
                f"rank {rank} of {world_size} did not meet the other workers of a weight update at "
                f"{meeting_point[0]}:{meeting_point[1]}: {_first_line(error)}"
            ) from error

    def finalize(self) -> None:
        self.group = self.store = self.rank = None

    @torch.no_grad()
    async def send_weights(self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Send named weights, then an empty bucket, which marks the end."""
        if self.rank < 0:
            async for _ in ensure_async_iterator(weights):
                pass  # each weight is gathered from all actor ranks
            return
        bucket = torch.empty(self.bucket_size, dtype=torch.uint8)
        pieces: list[TensorMeta] = []
        used = 0
        async for piece, content in split_weight_chunks(weights, self.bucket_size):
            # The receiver looks at a piece as its own dtype, which needs an aligned start.
            start = -(-used // piece.dtype.itemsize) * piece.dtype.itemsize
            if start + piece.chunk_size > self.bucket_size:
                await self._send_bucket(pieces, bucket[:used])
                pieces, start = [], 0
            piece.offset = start
            used = start + piece.chunk_size
            bucket[start:used] = content
            pieces.append(piece)
        if pieces:
            await self._send_bucket(pieces, bucket[:used])
        await self._send_bucket([], bucket[:0])

    @torch.no_grad()
    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield the named weights that actor rank 0 sends, bit for bit, on the CPU."""
        async for name, weight in merge_weight_chunks(self._receive_pieces(), self.bucket_size):
            yield name, weight

    async def _receive_pieces(self) -> AsyncIterator[tuple[TensorMeta, torch.Tensor]]:
        while True:
            sizes = await self._broadcast(torch.empty(2, dtype=torch.int64))
            described, used = sizes.tolist()
            if used == 0:
                return
            description = await self._broadcast(torch.empty(described, dtype=torch.uint8))
            # A new bucket each time, since weights of the last one may still be in use.
            bucket = await self._broadcast(torch.empty(used, dtype=torch.uint8))
            # From rank 0 of the same run, over its own group.
            for piece in pickle.loads(description.numpy().tobytes()):  # noqa: S301
                yield piece, bucket[piece.offset : piece.offset + piece.chunk_size]

    async def _send_bucket(self, pieces: list[TensorMeta], bucket: torch.Tensor) -> None:
        description = torch.frombuffer(bytearray(pickle.dumps(pieces)), dtype=torch.uint8)
        await self._broadcast(torch.tensor([len(description), len(bucket)]))
        if len(bucket) > 0:
            await self._broadcast(description)
            await self._broadcast(bucket)

    async def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Broadcast rank 0's tensor in a thread, so that the event loop goes on serving the engine."""
        try:
            await asyncio.to_thread(lambda: self.group.broadcast(tensor, 0).wait())
        except RuntimeError as error:
            raise WeightTransferError(
                f"rank {self.rank} of {self.group.size()} lost the other workers of a weight update, of which one has "
                f"exited unexpectedly or stalled (its own error is above): {_first_line(error)}"
            ) from error
        return tensor


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
