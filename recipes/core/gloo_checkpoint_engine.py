"""verl's checkpoint engine over gloo: sends weights from the training workers to separate rollout workers on a CPU.

verl's own backends each need an accelerator's libraries (cupy, nixl, mooncake, ...); this one needs torch alone.
``actor_rollout_ref.rollout.checkpoint_engine`` chooses it: ``backend=gloo`` and
``custom_backend_module=recipes.core.gloo_checkpoint_engine``.
"""

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import ray
import torch
from torch.distributed import ProcessGroupGloo, TCPStore
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

from recipes.errors import WeightTransferError


@CheckpointEngineRegistry.register("gloo")
class GlooCheckpointEngine(CheckpointEngine):
    """Broadcasts weights from actor rank 0 to all rollout workers.

    The other actor ranks send nothing; they only help to gather each weight. The group is built for one update, so that
    nothing of an update outlives it.

    Args:
        bucket_size: verl's, not used: each weight is one broadcast.
        is_master: whether this is actor rank 0.
        timeout_seconds: longest wait for another worker of the group (`engine_kwargs.gloo.timeout_seconds`). It is
            longer than `VERL_DUETS_SYNC_TIMEOUT`, so that an engine that does not load its weights is named first.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, timeout_seconds: float = 300.0) -> None:
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
        """Send named weights one after the other, then an empty description, which marks the end."""
        async for name, weight in ensure_async_iterator(weights):
            if self.rank >= 0:  # the others only help to gather each weight
                await self._send_description(pickle.dumps((name, weight.dtype, weight.shape)))
                await self._broadcast(weight.contiguous().view(-1).view(torch.uint8))
        if self.rank >= 0:
            await self._send_description(b"")

    @torch.no_grad()
    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield the named weights that actor rank 0 sends, bit for bit, on the CPU."""
        while size := (await self._broadcast(torch.empty(1, dtype=torch.int64))).item():
            description = await self._broadcast(torch.empty(size, dtype=torch.uint8))
            # From rank 0 of the same run, over its own group.
            name, dtype, shape = pickle.loads(description.numpy().tobytes())  # noqa: S301
            weight = torch.empty(shape, dtype=dtype)
            await self._broadcast(weight.view(-1).view(torch.uint8))
            yield name, weight

    async def _send_description(self, description: bytes) -> None:
        await self._broadcast(torch.tensor([len(description)]))
        if description:
            await self._broadcast(torch.frombuffer(bytearray(description), dtype=torch.uint8))

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
