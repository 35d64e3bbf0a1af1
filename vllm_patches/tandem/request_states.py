"""What the decoder keeps of each live request: its author schedule and how far each model's KV cache reaches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vllm_patches.tandem.boundaries import BoundarySets
from vllm_patches.tandem.config import RequestSettings
from vllm_patches.tandem.schedule_table import ScheduleTable


class RequestStates:
    """Requests by id; batched access through their rows.

    Attributes:
        schedules: the author schedules.
        computed: (2, capacity) tokens whose keys and values each model holds, by author and row.
    """

    def __init__(self, boundaries: BoundarySets, vocab_size: int):
        self.schedules = ScheduleTable({"word": boundaries.word, "sentence": boundaries.sentence}, vocab_size)
        self.computed = np.zeros((2, len(self.schedules.author)), dtype=np.int64)
        self._row_of: dict[str, int] = {}

    def add(
        self, request_id: str, settings: RequestSettings, prompt_token_ids: Sequence[int], num_computed: int
    ) -> None:
        """Start a request whose first ``num_computed`` tokens came from the prefix cache."""
        emitted = prompt_token_ids[len(prompt_token_ids) - settings.resume_len :]
        row = self.schedules.add(settings.params, emitted)
        missing = len(self.schedules.author) - self.computed.shape[1]
        if missing:
            self.computed = np.pad(self.computed, ((0, 0), (0, missing)))
        self.computed[:, row] = num_computed
        self._row_of[request_id] = row

    def restart(self, request_id: str, num_computed: int) -> None:
        """Resume a preempted request from ``num_computed`` cached tokens; its schedule goes on where it was."""
        self.computed[:, self._row_of[request_id]] = num_computed

    def remove(self, request_id: str) -> None:
        """Drop a request; unknown ids are ignored, since vLLM reports the end of requests that never ran."""
        row = self._row_of.pop(request_id, None)
        if row is not None:
            self.schedules.remove(row)

    def rows(self, request_ids: Sequence[str]) -> np.ndarray:
        """(N,) the rows of these requests."""
        return np.fromiter((self._row_of[i] for i in request_ids), dtype=np.int64, count=len(request_ids))

    def __len__(self) -> int:
        return len(self._row_of)
