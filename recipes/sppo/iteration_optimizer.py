"""The original's optimiser: RMSprop whose moments and learning rate start anew with every iteration.

The original SPPO code trains each iteration as a run of its own: RMSprop, 10 % linear warm-up, then linear decay to 0.
verl keeps one optimiser for the whole run and steps its scheduler once per training step, here an iteration, so that
both belong inside the optimiser's own step. verl loads it by name (`actor.optim.optimizer_impl`, `optimizer`).
"""

import math
from collections.abc import Callable
from typing import Any

import torch

COUNT = "sppo_updates"


def linear_schedule(update: int, updates: int, warmup_ratio: float) -> float:
    """Compute the learning rate factor at `update` (from 0) of an iteration's `updates`: up to 1, then towards 0.

    It is transformers' linear schedule of one more update without its first value, so that no update has a factor of 0.
    """
    warmup = math.ceil(warmup_ratio * updates)
    position = update + 1
    return position / warmup if position <= warmup else (updates + 1 - position) / (updates + 1 - warmup)


class IterationRMSprop(torch.optim.RMSprop):
    """RMSprop that forgets its moments and repeats its schedule after every `updates_per_iteration` updates.

    Updates are counted by the optimiser and stored with its state, so that a resumed run goes on in the schedule. An
    update that verl skips because its gradient is not finite is not counted.

    Args:
        params: as torch's.
        lr: learning rate at the end of the warm-up.
        updates_per_iteration: optimiser updates in one training step of verl.
        warmup_ratio: share of an iteration's updates over which the learning rate rises.
        rmsprop: torch's other arguments.

    Raises:
        ValueError: fewer than 1 update, or a ratio outside [0, 1).
    """

    def __init__(
        self, params: Any, lr: float, *, updates_per_iteration: int, warmup_ratio: float = 0.1, **rmsprop: Any
    ) -> None:
        if isinstance(updates_per_iteration, bool) or int(updates_per_iteration) < 1:
            raise ValueError(f"updates_per_iteration must be at least 1, found {updates_per_iteration}")
        if not 0 <= warmup_ratio < 1:
            raise ValueError(f"warmup_ratio must be at least 0 and below 1, found {warmup_ratio}")
        super().__init__(params, lr=lr, **rmsprop)
        self.updates_per_iteration, self.warmup_ratio = int(updates_per_iteration), float(warmup_ratio)
        for group in self.param_groups:
            group.setdefault(COUNT, 0)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        update = self.param_groups[0][COUNT] % self.updates_per_iteration
        if update == 0:
            self.state.clear()
        factor = linear_schedule(update, self.updates_per_iteration, self.warmup_ratio)
        peaks = [group["lr"] for group in self.param_groups]
        for group, peak in zip(self.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        try:
            return super().step(closure)
        finally:
            # verl's scheduler owns the stored value
            for group, peak in zip(self.param_groups, peaks, strict=True):
                group["lr"] = peak
                group[COUNT] += 1
