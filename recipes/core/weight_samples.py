"""What a weight sync is judged by: a few elements of every tensor, and three claims about them.

1. The engine was handed what its own trainer sent (equal digests).
2. Where the actor's trained parameters moved, what was sent moved.
3. Where what was sent moved, the engine's parameters moved.

A claim of movement fails only after :data:`PATIENCE` syncs in a row, and counts only from :data:`ENOUGH` elements on:
a warm-up step with learning rate 0, or one below the engine's precision, moves nothing and is no fault.
"""

import hashlib
from collections.abc import Iterable, Mapping

import torch

PER_TENSOR = 256
ENOUGH = 64
PATIENCE = 2

Samples = Mapping[str, torch.Tensor]


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """At most ``PER_TENSOR`` elements at equal distances, on the CPU, in the tensor's own type."""
    flat = tensor.detach()
    flat = flat.to_local() if hasattr(flat, "to_local") else flat
    flat = flat.reshape(-1)
    # An odd distance, so that it does not stay in one column of a matrix.
    stride = (flat.numel() // PER_TENSOR) | 1
    if flat.is_floating_point() and flat.element_size() == 1:
        flat = flat.view(torch.uint8)  # which torch can compare
    return flat[::stride][:PER_TENSOR].contiguous().cpu().clone()


def sample_all(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Samples by name."""
    return {name: sample(tensor) for name, tensor in named}


def digest(samples: Samples) -> str:
    """SHA-256 over names and sampled bytes, in the order of the names."""
    found = hashlib.sha256()
    for name in sorted(samples):
        found.update(name.encode())
        found.update(samples[name].view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def moved(before: Samples | None, after: Samples, precision: torch.dtype | None = None) -> int:
    """Count the sampled elements that changed, in ``precision`` where it is given; new names do not count."""
    count = 0
    for name, value in after.items():
        former = (before or {}).get(name)
        if former is None or former.shape != value.shape:
            continue
        if precision is not None:
            former, value = former.to(precision), value.to(precision)
        count += int((former != value).sum())
    return count


class Follower:
    """Whether one side of a sync moves when the other does; remembers the last samples of its own side."""

    def __init__(self) -> None:
        self.last: Samples | None = None
        self.strikes = 0

    def see(self, leader_moved: int, samples: Samples) -> bool:
        """Take the samples of a sync.

        Args:
            leader_moved: sampled elements by which the side before this one moved since the last sync.

        Returns:
            False when this side stood still ``PATIENCE`` times in a row while the other moved.
        """
        still = self.last is not None and leader_moved >= ENOUGH and moved(self.last, samples) == 0
        self.strikes = self.strikes + 1 if still else 0
        self.last = dict(samples)
        return self.strikes < PATIENCE


class DifferenceWatch:
    """Watch the mean difference of the probabilities that rollout engine and actor give a response's tokens.

    Args:
        limit: a mean difference above it is a fault by itself.
    """

    GROWTH = 10.0

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.first: float | None = None
        self.strikes = 0

    def see(self, value: float) -> bool:
        """Take the value of a step; False when the last ``PATIENCE`` were too high."""
        if value != value:
            return True  # no trained token
        if self.first is None:
            self.first = value
        grown = value > max(self.limit / 10, self.GROWTH * self.first)
        self.strikes = self.strikes + 1 if value > self.limit or grown else 0
        return self.strikes < PATIENCE


def difference_limit(dtype: str, quantized: bool, truncated: bool) -> float:
    """The mean difference of probabilities that no working sync reaches.

    Measured on the toy world: below 1e-6 in float32 with a sync, above 0.1 without. The other limits leave room for
    rounding, and for the renormalised probabilities that top-p and top-k sampling reports.
    """
    if truncated:
        return 0.5
    if quantized:
        return 0.25
    return 1e-3 if dtype in ("float32", "fp32", "float") else 0.1
