"""One round as the host knows it before the senior runs: the drafts, their authors, where things lie in the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from vllm_patches.tandem.schedule import JUNIOR, SENIOR
from vllm_patches.tandem.schedule_table import ScheduleTable
from vllm_patches.tandem.speculative.replay import Replay, replay
from vllm_patches.tandem.speculative.verify import NOTHING


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
        given = [drafted.get(request_id, ()) for request_id in request_ids]
        scheduled = np.fromiter(map(len, given), dtype=np.int64, count=len(given))
        drafts = np.zeros((len(given), int(scheduled.max(initial=0))), dtype=np.int64)
        filled = np.arange(drafts.shape[1]) < scheduled[:, None]
        drafts[filled] = np.fromiter((i for row in given for i in row), dtype=np.int64, count=int(scheduled.sum()))
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
