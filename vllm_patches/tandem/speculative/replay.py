"""The author schedules of a batch run ahead over drafted tokens, all positions at once."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np

from vllm_patches.tandem.schedule import STRATEGIES
from vllm_patches.tandem.schedule_table import ScheduleTable, coin_authors


@dataclasses.dataclass(frozen=True)
class Replay:
    """What the schedules say after each prefix of the drafts; column k is the state after k of them.

    Attributes:
        authors: (N, K + 1) int8, who writes position k.
        since, redraws: (N, K + 1), the rest of the state, as the columns of ``ScheduleTable``.
    """

    authors: np.ndarray
    since: np.ndarray
    redraws: np.ndarray


def replay(table: ScheduleTable, rows: np.ndarray, drafts: np.ndarray) -> Replay:
    """Run the schedules of ``rows`` (N,) over ``drafts`` (N, K) token ids; the table stays as it is.

    A schedule's future depends on its past through the position of its last redraw or toggle alone. So the event that
    each (last reset, position) pair would cause is computed for all pairs in one call of the strategy, and the chain of
    resets is followed by doubling: the number of array operations grows with log2 K, not with K or N.
    """
    num_rows, num_drafts = drafts.shape
    redrawn = np.zeros((num_rows, num_drafts), dtype=bool)
    toggled = np.zeros_like(redrawn)
    numbers = table.strategy[rows]
    for number in np.unique(numbers) if num_drafts else ():
        chosen = np.flatnonzero(numbers == number)
        name = table.name_of(number)
        redrawn[chosen], toggled[chosen] = _events(table, name, rows[chosen], drafts[chosen])

    redraws = _running(table.redraws[rows].astype(np.int64), redrawn)
    since = _since_last(redrawn | toggled, table.since[rows])
    drawn = coin_authors(table.key[rows][:, None], table.threshold[rows][:, None], redraws - 1)
    fresh = redraws > redraws[:, :1]
    toggles = _running(np.zeros(num_rows, dtype=np.int64), toggled)
    at_last_redraw = np.zeros_like(toggles)
    np.maximum.accumulate(np.where(redrawn, toggles[:, 1:], 0), axis=1, out=at_last_redraw[:, 1:])
    authors = np.where(fresh, drawn, table.author[rows][:, None]) ^ (toggles - at_last_redraw & 1)
    return Replay(authors.astype(np.int8), since, redraws)


def commit(table: ScheduleTable, rows: np.ndarray, ahead: Replay, emitted: list[list[int]]) -> None:
    """Advance the table over what each of ``rows`` (N,) emitted: drafts, then one token that may differ from its
    draft."""
    counts = np.fromiter(map(len, emitted), dtype=np.int64, count=len(emitted))
    wrote = np.flatnonzero(counts)
    rows, before_last = rows[wrote], counts[wrote] - 1
    table.author[rows] = ahead.authors[wrote, before_last]
    table.since[rows] = ahead.since[wrote, before_last]
    table.redraws[rows] = ahead.redraws[wrote, before_last]
    table.advance(rows, np.fromiter((emitted[i][-1] for i in wrote), dtype=np.int64, count=len(wrote)))


def _events(table: ScheduleTable, name: str, rows: np.ndarray, drafts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, K) where a redraw, and where a toggle, follows each drafted token of rows that share a strategy."""
    strategy, (num_rows, num_drafts) = STRATEGIES[name], drafts.shape
    boundary = table.is_boundary(strategy.boundary)[drafts][:, None, :]
    resets, positions = np.arange(num_drafts + 1)[:, None], np.arange(num_drafts)
    since = np.broadcast_to(positions - resets + 1, (num_rows, num_drafts + 1, num_drafts)).copy()
    since[:, 0] += table.since[rows][:, None]
    params = SimpleNamespace(
        max_gap_tokens=table.max_gap_tokens[rows][:, None, None], chunk_size=table.chunk_size[rows][:, None, None]
    )
    nothing = np.zeros(since.shape, dtype=bool)
    redraws = strategy.redraws(boundary, since, params) & (since > 0) if strategy.redraws else nothing
    toggles = strategy.toggles(boundary, since, params) & (since > 0) if strategy.toggles else nothing
    visited = _reachable(redraws | toggles)
    last = np.maximum.accumulate(np.where(visited, np.arange(num_drafts + 1), 0), axis=1)[:, :-1, None]
    at_last = [np.take_along_axis(np.swapaxes(kind, 1, 2), last, axis=2)[:, :, 0] for kind in (redraws, toggles)]
    return at_last[0], at_last[1]


def _reachable(events: np.ndarray) -> np.ndarray:
    """(n, K + 1) which resets happen; ``events[i, r, k]`` says that position k ends a run that began after reset r."""
    num_rows, num_states, num_drafts = events.shape
    none = num_states  # one more state, that no event leaves
    jump = np.full((num_rows, num_states + 1), none)
    jump[:, :-1] = np.where(events.any(axis=2), events.argmax(axis=2) + 1, none)
    visited = np.zeros((num_rows, num_states + 1), dtype=bool)
    visited[:, 0] = True
    for _ in range(max(1, num_drafts).bit_length()):
        row, state = np.nonzero(visited)
        visited[row, jump[row, state]] = True
        jump = np.take_along_axis(jump, jump, axis=1)
    return visited[:, :-1]


def _running(start: np.ndarray, events: np.ndarray) -> np.ndarray:
    counts = np.zeros((len(start), events.shape[1] + 1), dtype=np.int64)
    np.cumsum(events, axis=1, out=counts[:, 1:])
    return counts + start[:, None]


def _since_last(events: np.ndarray, since: np.ndarray) -> np.ndarray:
    positions = np.arange(events.shape[1] + 1)
    last = np.zeros((len(since), len(positions)), dtype=np.int64)
    np.maximum.accumulate(np.where(events, positions[1:], 0), axis=1, out=last[:, 1:])
    return positions - last + np.where(last == 0, since[:, None], 0)
