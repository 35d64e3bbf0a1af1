"""The author schedules of a whole batch, as arrays: bit for bit the same authors as ``schedule.AuthorSchedule``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace

import numpy as np

from vllm_patches.tandem.schedule import (
    COIN_BITS,
    GOLDEN_GAMMA,
    STRATEGIES,
    AuthorSchedule,
    ScheduleParams,
    senior_threshold,
    stream_key,
)

_COLUMNS = {
    "author": np.int8,
    "since": np.int64,
    "redraws": np.uint64,
    "key": np.uint64,
    "threshold": np.uint64,
    "strategy": np.int16,
    "max_gap_tokens": np.int64,
    "chunk_size": np.int64,
    "aligned_before": np.bool_,
    "has_one_author": np.bool_,
}


def mix64_array(x: np.ndarray) -> np.ndarray:
    """``schedule.mix64`` of each element, uint64 in and out."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def coin_authors(key: np.ndarray, threshold: np.ndarray, redraw: np.ndarray) -> np.ndarray:
    """Who wins coin number ``redraw`` (from 0) of each stream; elementwise, the shapes broadcast."""
    counter = (np.asarray(redraw).astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN_GAMMA)
    return mix64_array(key + counter) >> np.uint64(64 - COIN_BITS) < threshold


class ScheduleTable:
    """One row per live response; ``add`` allots a row, ``remove`` frees it.

    Args:
        boundary_ids: boundary token ids by kind (``word``, ``sentence``).
        vocab_size: token ids are below this.
    """

    def __init__(self, boundary_ids: Mapping[str, Iterable[int]], vocab_size: int, capacity: int = 64):
        self._boundary_ids = {kind: frozenset(ids) for kind, ids in boundary_ids.items()}
        self._is_boundary = {None: np.zeros(vocab_size, dtype=bool)}
        for kind, ids in self._boundary_ids.items():
            self._is_boundary[kind] = np.zeros(vocab_size, dtype=bool)
            self._is_boundary[kind][sorted(ids)] = True
        self._names: list[str] = []
        self._free = list(range(capacity))[::-1]
        for name, dtype in _COLUMNS.items():
            setattr(self, name, np.zeros(capacity, dtype=dtype))

    def add(self, params: ScheduleParams, emitted: Iterable[int] = ()) -> int:
        """Start a response and return its row; ``emitted`` are tokens of it that were written earlier.

        Raises:
            ValueError: the strategy's boundary set is missing, or there are emitted tokens under
                ``word_align='before'``, whose authors cannot be computed.
        """
        emitted = list(emitted)
        if params.word_align == "before" and emitted:
            raise ValueError("a response under word_align='before' cannot be resumed from its tokens alone")
        one = AuthorSchedule(params, self._boundary_ids.get(params.strategy.boundary, frozenset()))
        for token_id in emitted:
            one.advance(token_id)
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.author[row], self.since[row], self.redraws[row] = one.author, one.since, one.redraws
        self.key[row] = stream_key(params.seed, params.request)
        self.threshold[row] = senior_threshold(params.prob_senior)
        self.max_gap_tokens[row], self.chunk_size[row] = params.max_gap_tokens, params.chunk_size
        self.strategy[row] = self._number(params.selection_strategy)
        self.aligned_before[row] = params.word_align == "before"
        self.has_one_author[row] = params.has_one_author
        return row

    def remove(self, row: int) -> None:
        """Free a row; the next ``add`` may use it."""
        self._free.append(row)

    def advance(self, rows: np.ndarray, token_ids: np.ndarray) -> None:
        """Account for one emitted token in each of ``rows`` (N,), all different; ``token_ids`` (N,)."""
        self.since[rows] += 1
        free = ~self.aligned_before[rows]
        rows, token_ids = rows[free], token_ids[free]
        numbers = self.strategy[rows]
        for number in np.unique(numbers):
            chosen = numbers == number
            self._advance_strategy(self._names[number], rows[chosen], token_ids[chosen])

    def offer(self, rows: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
        """(N,) whose sample to emit, given the current authors' samples; see ``AuthorSchedule.offer``."""
        params = SimpleNamespace(max_gap_tokens=self.max_gap_tokens[rows])
        due = STRATEGIES["word"].redraws(self._is_boundary["word"][token_ids], self.since[rows], params)
        self._draw(rows[due & self.aligned_before[rows] & (self.since[rows] > 0)])
        return self.author[rows].copy()

    def name_of(self, number: int) -> str:
        """The strategy behind a value of the ``strategy`` column."""
        return self._names[number]

    def is_boundary(self, kind: str | None) -> np.ndarray:
        """(vocabulary,) bool, the boundary tokens of a kind; none for None."""
        return self._is_boundary[kind]

    def _advance_strategy(self, name: str, rows: np.ndarray, token_ids: np.ndarray) -> None:
        strategy = STRATEGIES[name]
        boundary = self._is_boundary[strategy.boundary][token_ids]
        params = SimpleNamespace(max_gap_tokens=self.max_gap_tokens[rows], chunk_size=self.chunk_size[rows])
        drawn = np.zeros(len(rows), dtype=bool)
        if strategy.redraws:
            drawn = np.asarray(strategy.redraws(boundary, self.since[rows], params))
            self._draw(rows[drawn])
        if strategy.toggles:
            turned = rows[np.asarray(strategy.toggles(boundary, self.since[rows], params)) & ~drawn]
            self.author[turned] = 1 - self.author[turned]
            self.since[turned] = 0

    def _draw(self, rows: np.ndarray) -> None:
        self.author[rows] = coin_authors(self.key[rows], self.threshold[rows], self.redraws[rows])
        self.redraws[rows] += np.uint64(1)
        self.since[rows] = 0

    def _number(self, name: str) -> int:
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def _grow(self) -> None:
        size = len(self.author)
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self._free = list(range(size, 2 * size))[::-1]
