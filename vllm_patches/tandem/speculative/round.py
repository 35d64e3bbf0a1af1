"""One round as the host knows it before the senior runs: the drafts, their authors, where things lie in the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import numpy as np

from vllm_patches.tandem.schedule import JUNIOR, SENIOR, STRATEGIES
from vllm_patches.tandem.schedule_table import ScheduleTable, coin_authors
from vllm_patches.tandem.speculative.verify import NOTHING


@dataclasses.dataclass(frozen=True)
class Replay:
    """The author schedules of a batch run ahead over drafted tokens; column k is the state after k of them.

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


@dataclasses.dataclass
class Round:
    """N requests of one step, K the longest draft among them.

    Attributes:
        rows: (N,) rows of the schedule table.
        samples: (N,) whether the request emits in this step, or is an unfinished prompt.
        drafts: (N, K) drafted token ids; num_drafts: (N,) how many of them count.
        ahead: the schedules run over the drafts.
        authors: (N, K + 1) as ``ahead.authors``, the junior in rows that do not sample, which then emit nothing.
        logit_starts: (N,) first row of each request in the step's logits.
        query_starts: (N,) where each request's tokens begin in the step's input.
        query_lengths: (N,) input tokens of each request up to the last whose successor is drafted or emitted.
    """

    rows: np.ndarray
    samples: np.ndarray
    drafts: np.ndarray
    num_drafts: np.ndarray
    ahead: Replay
    authors: np.ndarray
    logit_starts: np.ndarray
    query_starts: np.ndarray
    query_lengths: np.ndarray

    @classmethod
    def of(
        cls,
        table: ScheduleTable,
        rows: np.ndarray,
        samples: np.ndarray,
        request_ids: Sequence[str],
        num_scheduled: np.ndarray,
        drafted: Mapping[str, Sequence[int]],
    ) -> Round:
        """Lay one step out.

        Args:
            table: the schedules; it stays as it is.
            rows, samples: see the class.
            request_ids: (N,) in batch order.
            num_scheduled: (N,) input tokens of each request, drafts included.
            drafted: scheduled drafts by request; vLLM pads a resumed request with ids of -1, which are none.
        """
        proposed = [drafted.get(request_id, ()) for request_id in request_ids]
        scheduled = np.fromiter(map(len, proposed), dtype=np.int64, count=len(proposed))
        drafts = np.zeros((len(proposed), int(scheduled.max(initial=0))), dtype=np.int64)
        filled = np.arange(drafts.shape[1]) < scheduled[:, None]
        drafts[filled] = np.fromiter((i for row in proposed for i in row), dtype=np.int64, count=int(scheduled.sum()))
        padded = (drafts < 0).any(axis=1)
        num_drafts = np.where(padded | ~samples, 0, scheduled)
        drafts[padded] = 0
        ahead = replay(table, rows, drafts)
        return cls(
            rows=rows,
            samples=samples,
            drafts=drafts,
            num_drafts=num_drafts,
            ahead=ahead,
            authors=np.where(samples[:, None], ahead.authors, JUNIOR),
            logit_starts=_starts(scheduled + 1),
            query_starts=_starts(num_scheduled),
            query_lengths=num_scheduled - np.where(padded, scheduled, 0),
        )

    def verified(self) -> tuple[np.ndarray, np.ndarray]:
        """(M,) requests and (M,) positions that the senior samples: its own, the one after the drafts included."""
        positions = np.arange(self.authors.shape[1])
        return np.nonzero((self.authors == SENIOR) & (positions <= self.num_drafts[:, None]))

    def junior_inputs(self) -> JuniorInputs:
        """What the junior reads before it drafts again.

        It holds the keys and values of all drafts but the last, so a request that had drafts needs the newest token and
        the one before it: two tokens, however many were emitted. Without drafts it reads the step's input, and the
        token emitted after it where there is one.
        """
        had_drafts = self.num_drafts > 0
        emits = self.samples & (self.authors[:, 0] == SENIOR)
        lengths = np.where(had_drafts, 2, self.query_lengths + emits)
        ends = np.cumsum(lengths)
        requests = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
        newest = np.zeros(len(requests), dtype=bool)
        newest[(ends - 1)[had_drafts | emits]] = True
        return JuniorInputs(requests, within, newest, ends)

    def outcome(self, emitted: Sequence[Sequence[int]]) -> Outcome:
        """Counts over requests that had drafts; ``emitted`` (N lists) is what every request emitted."""
        counts = np.fromiter(map(len, emitted), dtype=np.int64, count=len(emitted))
        tokens = np.full(self.authors.shape, NOTHING, dtype=np.int64)
        tokens[np.arange(self.authors.shape[1]) < counts[:, None]] = np.fromiter(
            (i for row in emitted for i in row), dtype=np.int64, count=int(counts.sum())
        )
        had_drafts, positions = self.num_drafts > 0, np.arange(self.drafts.shape[1])
        reached = positions < np.minimum(self.num_drafts, counts)[:, None]
        tested = reached & (self.authors[:, :-1] == SENIOR)
        return Outcome(
            rounds=int(had_drafts.sum()),
            drafted=int(self.num_drafts.sum()),
            emitted=int(counts[had_drafts].sum()),
            reached=int(reached.sum()),
            tested=int(tested.sum()),
            passed=int((tested & (tokens[:, :-1] == self.drafts)).sum()),
            silent=int((self.samples & (counts == 0)).sum()),
        )


@dataclasses.dataclass(frozen=True)
class JuniorInputs:
    """T tokens that the junior reads: of which request (T,), the how-manieth of it (T,), whether it is the token just
    emitted (T,); and where each request ends (N,)."""

    requests: np.ndarray
    within: np.ndarray
    newest: np.ndarray
    ends: np.ndarray


@dataclasses.dataclass
class Outcome:
    """What came of drafting, in counts that add up over steps.

    Attributes:
        rounds: requests with drafts, one per step; ``drafted`` tokens were made for them, ``emitted`` came out.
        reached: drafts before the end of their round, that one included; ``tested`` of them the senior was to write,
            ``passed`` of those it agreed with.
        silent: requests that emitted nothing in a step, the junior writing next and no draft at hand.
    """

    rounds: int = 0
    drafted: int = 0
    emitted: int = 0
    reached: int = 0
    tested: int = 0
    passed: int = 0
    silent: int = 0

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - lengths


@dataclasses.dataclass
class SpeculativeStats:
    """Work done since the last reset; ``tandem_stats`` of the worker returns it.

    Attributes:
        outcome: what became of the drafts.
        cost_ratio: a pass of the junior in passes of the senior, by the bytes of their weights.
        acceptance: share of the drafts on the senior's turns that it agreed with.
        emitted_per_round: tokens per round and request.
        cost_per_token: passes of the senior per emitted token, the junior's counted by ``cost_ratio``; what a machine
            costs that spends its time reading weights, against 1 for the senior alone.
    """

    steps: int = 0
    outcome: Outcome = dataclasses.field(default_factory=Outcome)
    cached_tokens: int = 0
    resumed_requests: int = 0
    cost_ratio: float = 0.0
    acceptance: float = 0.0
    emitted_per_round: float = 0.0
    cost_per_token: float = 0.0

    def add(self, outcome: Outcome, cost_ratio: float) -> None:
        """Account for one step."""
        self.steps += 1
        self.cost_ratio = cost_ratio
        self.outcome = total = self.outcome + outcome
        self.acceptance = total.passed / max(1, total.tested)
        self.emitted_per_round = total.emitted / max(1, total.rounds)
        self.cost_per_token = (total.rounds + cost_ratio * total.drafted) / max(1, total.emitted)


# How many tokens the junior drafts follows from what became of earlier drafts; the text does not depend on it
# (`verify`).
MEMORY = 2000  # drafts after which an observation has lost about two thirds of its weight
EVERY = 200  # drafts between two choices


def tokens_per_round(num_drafts: int, stands: float, senior: float) -> float:
    """Expected tokens of a round.

    Args:
        num_drafts: K.
        stands: probability that a round goes on after a draft, the junior writing or the senior agreeing.
        senior: probability that the senior writes the token after the drafts.
    """
    return sum(stands**k for k in range(num_drafts)) + senior * stands**num_drafts


def best_length(bound: int, stands: float, senior: float, cost_ratio: float) -> int:
    """The number of drafts, 1 to ``bound``, with the most tokens for what a round costs: one pass of the senior and K
    of the junior, each ``cost_ratio`` of one. Reading the weights is what a pass costs, not the few tokens in it."""
    gain = {k: tokens_per_round(k, stands, senior) / (1 + cost_ratio * k) for k in range(1, bound + 1)}
    return max(gain, key=gain.get)


class DraftLength:
    """The current number of drafts, from 1 to ``bound``; it begins at the bound.

    Args:
        bound: most drafts in a round.
        adapts: False keeps the bound.
    """

    def __init__(self, bound: int, adapts: bool = True):
        self.bound = self.current = bound
        self._adapts = adapts
        self._reached = self._tested = self._failed = 0.0
        self._since_choice = 0

    def observe(self, outcome: Outcome, cost_ratio: float) -> None:
        """Learn from one step; ``cost_ratio`` is a junior's pass in passes of the senior."""
        fading = max(0.0, 1 - outcome.reached / MEMORY)
        self._reached = self._reached * fading + outcome.reached
        self._tested = self._tested * fading + outcome.tested
        self._failed = self._failed * fading + outcome.tested - outcome.passed
        self._since_choice += outcome.reached
        if self._adapts and self._since_choice >= EVERY:
            self._since_choice = 0
            stands, senior = 1 - self._failed / self._reached, self._tested / self._reached
            self.current = best_length(self.bound, stands, senior, cost_ratio)
