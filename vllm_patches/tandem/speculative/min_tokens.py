"""``min_tokens``: the stop tokens that a request may not be given yet, laid out for the rows of one step."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
import torch


@dataclasses.dataclass(frozen=True)
class EarlyStops:
    """Of N requests in a step, E are short of their least length, and S is the most stop tokens that one of them has.

    Attributes:
        places: (N,) row of ``stops``; any row for a request whose least length is reached.
        least: (N,) least length, 0 for a request that has reached it.
        stops: (E, S) stop tokens; a shorter row repeats its first.
    """

    places: torch.Tensor
    least: torch.Tensor
    stops: torch.Tensor

    def exclude(self, logits: torch.Tensor, requests: torch.Tensor, written: torch.Tensor) -> None:
        """Set the stop tokens of rows that are too early for them to minus infinity, in place.

        Args:
            logits: (M, V) float.
            requests: (M,) request of each row.
            written: (M,) tokens that the request has before this one.
        """
        early = written < self.least[requests]
        stops = self.stops[self.places[requests]]
        # Adding is right for a token that a row repeats, and waits for nothing from the device.
        logits.scatter_add_(1, stops, torch.where(early, float("-inf"), 0.0)[:, None].expand(stops.shape))


class MinTokens:
    """Least lengths and stop tokens of the requests that have both."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, np.ndarray]] = {}

    def add(self, request_id: str, least: int, stops: Collection[int]) -> None:
        """Take note of a request; without a least length or a stop token there is nothing to note."""
        if least and stops:
            self._of[request_id] = (least, np.array(sorted(stops), dtype=np.int64))

    def forget(self, request_id: str) -> None:
        """Drop a request; unknown ids are ignored."""
        self._of.pop(request_id, None)

    def early(self, request_ids: Sequence[str], written: np.ndarray, device: torch.device) -> EarlyStops | None:
        """What to exclude in a step whose requests have ``written`` (N,) tokens before it; None where nothing is."""
        short = [
            (row, *self._of[request_id])
            for row, request_id in enumerate(request_ids)
            if request_id in self._of and written[row] < self._of[request_id][0]
        ]
        if not short:
            return None
        layout = np.zeros((2, len(request_ids)), dtype=np.int64)
        table = np.empty((len(short), max(len(stops) for _, _, stops in short)), dtype=np.int64)
        for place, (row, least, stops) in enumerate(short):
            layout[:, row] = place, least
            table[place] = stops[0]
            table[place, : len(stops)] = stops
        places, least = torch.from_numpy(layout).to(device, non_blocking=True)
        return EarlyStops(places, least, torch.from_numpy(table).to(device, non_blocking=True))
