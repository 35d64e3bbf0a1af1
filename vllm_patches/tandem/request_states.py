"""What the decoder keeps of each live request: its author schedule and how far each model's KV cache reaches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from vllm_patches.tandem.boundaries import BoundarySets
from vllm_patches.tandem.config import RequestSettings
from vllm_patches.tandem.schedule_table import ScheduleTable


class ScratchGenerator(torch.Generator):
    """A generator for samples that do not count: rewinding it has no effect and is no error.

    In stock vLLM 0.28 on a CPU a seeded request whose prompt is computed in chunks fails ("CPU Generator does not use
    offset"), since vLLM samples the unfinished chunk, discards the sample and rewinds the generator. And one beside
    unseeded requests is not sampled from its seed, since the sampler uses generators only where every row has one.
    """

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> None:
        pass


class GeneratorGuard:
    """Replaces generators whose state must not change, and on a CPU supplies those that unseeded rows lack."""

    def __init__(self, device: torch.device):
        self._fill = device.type == "cpu"
        self._scratch = ScratchGenerator(device=device)
        self._scratch.manual_seed(torch.initial_seed() % (1 << 63))

    @contextmanager
    def still(self, generators: dict[int, torch.Generator], rows: Iterable[int], num_rows: int):
        """Sample without changing the state of these batch rows' generators.

        Args:
            generators: the batch's seeded generators by row; altered within, restored after.
            rows: rows whose sample will be discarded.
            num_rows: rows in the batch.
        """
        if not generators:
            yield
            return
        own = dict(generators)
        replaced = set(rows) & own.keys()
        if self._fill:
            replaced |= set(range(num_rows)) - own.keys()
        generators.update(dict.fromkeys(replaced, self._scratch))
        try:
            yield
        finally:
            generators.clear()
            generators.update(own)


@dataclasses.dataclass
class Step:
    """One step, from the preparation of its inputs to the sampled tokens.

    ``last_hidden[m]`` are the hidden states, in the order of ``rows_written[m]``, that model m's logits come from; they
    are taken once, by the first call of ``compute_logits`` after the forward pass. ``aligned`` are the batch rows under
    ``word_align='before'``, whose second samples come from ``both_hidden``. ``held`` are, in the lazy mode, the leading
    tokens of each row whose keys and values both models hold after the step.
    """

    num_scheduled: np.ndarray
    rows: np.ndarray
    samples: np.ndarray
    writers: np.ndarray
    aligned: np.ndarray
    held: np.ndarray | None = None
    both_hidden: tuple[torch.Tensor, torch.Tensor] | None = None
    rows_written: list[np.ndarray] = dataclasses.field(default_factory=list)
    last_hidden: list[torch.Tensor | None] | None = None


@dataclasses.dataclass
class TandemStats:
    """Work done since the last reset; the pairs are indexed by author (0 junior, 1 senior). ``joint_passes`` counts the
    steps in which one forward pass was both models'."""

    steps: int = 0
    forwards: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    tokens: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    cached_tokens: int = 0
    resumed_requests: int = 0
    joint_passes: int = 0


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
