"""Score one round of the game, and order rounds and updates.

Source: PasoDoble, ``pasodoble_online.py`` and ``pasodoble_offline.py``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from recipes.pasodoble.diversity import DiversityHistory
from recipes.pasodoble.reward import proposer_reward
from recipes.pasodoble.sanity import Fault, find_fault
from recipes.pasodoble.settings import OfflineSettings, RoundSettings

SkipReason = Literal["pass_rate", "advantage", "ungraded"]
SKIP_REASONS: tuple[SkipReason, ...] = ("pass_rate", "advantage", "ungraded")
ROUNDING = 1e-9

Verdicts = Sequence[float] | None


@dataclass(frozen=True)
class Proposal:
    """A parsed proposal: question text (empty if unparsed), the Proposer's answer, token ids of the question alone."""

    question: str
    answer: str | None
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class ScoredRound:
    """What a round of I proposals came to; every list has length I.

    A proposal without a pass rate could not be graded for a fault of the infrastructure: it has no reward, is no part
    of the group's baseline, and is not trained on.
    """

    proposals: tuple[Proposal, ...]
    faults: tuple[Fault | None, ...]
    raw_pass_rates: tuple[float | None, ...]
    pass_rates: tuple[float | None, ...]
    """After the sanity check: 0 where there is a fault."""
    diversities: tuple[float | None, ...]
    rewards: tuple[float | None, ...]
    skip: SkipReason | None
    solver_indices: tuple[int, ...]
    """Questions the Solver learns from, online or through the buffer; none in a skipped round."""

    @property
    def proposer_indices(self) -> tuple[int, ...]:
        """Proposals the Proposer learns from: every graded one, those with reward 0 too; none in a skipped round."""
        return () if self.skip else tuple(i for i, reward in enumerate(self.rewards) if reward is not None)


def within_band(pass_rate: float | None, settings: RoundSettings) -> bool:
    """Apply the Solver filter: neither too hard nor always solved."""
    return pass_rate is not None and settings.tau_low < pass_rate < settings.tau_high


def questions_to_ask(proposals: Sequence[Proposal], settings: RoundSettings) -> list[int]:
    """Select the proposals that need the Solver; the others have pass rate 0 whatever it answers."""
    if settings.filter_by == "raw":
        return [i for i, p in enumerate(proposals) if p.question and p.answer]
    return [
        i for i, p in enumerate(proposals) if find_fault(p.question, p.answer, leak_check=settings.leak_check) is None
    ]


def pass_rate(verdicts: Verdicts) -> float | None:
    """Average the Solver's rewards on a question; 0 if it was not asked (empty), None if it could not be graded."""
    if verdicts is None:
        return None
    return sum(verdicts) / len(verdicts) if len(verdicts) else 0.0


def score_round(
    proposals: Sequence[Proposal],
    verdicts: Sequence[Verdicts],
    history: DiversityHistory,
    settings: RoundSettings,
) -> ScoredRound:
    """Score one round and commit its questions to ``history``.

    Args:
        proposals: the I proposals made from one knowledge text.
        verdicts: for each of them the Solver's rewards (0 or 1), empty if it was not asked, None if not gradable.
    """
    if len(proposals) != len(verdicts):
        raise ValueError(f"{len(proposals)} proposals, but verdicts for {len(verdicts)}")
    faults = [find_fault(p.question, p.answer, leak_check=settings.leak_check) for p in proposals]
    raw = [pass_rate(v) for v in verdicts]
    checked = [0.0 if fault else rate for fault, rate in zip(faults, raw, strict=True)]

    solvable = [rate is not None and rate > settings.tau_low for rate in checked]
    diversities: list[float | None] = [None] * len(proposals)
    if any(solvable):
        diversities = list(history.score(p.token_ids for p in proposals))
        history.commit(_admitted(proposals, solvable, settings))
    rewards = [_reward(*row, settings) for row in zip(checked, diversities, strict=True)]

    skip = _skip_reason(checked, rewards, settings)
    filtered = raw if settings.filter_by == "raw" else checked
    learnable = [i for i, p in enumerate(proposals) if p.question and p.answer and within_band(filtered[i], settings)]
    return ScoredRound(
        proposals=tuple(proposals),
        faults=tuple(faults),
        raw_pass_rates=tuple(raw),
        pass_rates=tuple(checked),
        diversities=tuple(diversities),
        rewards=tuple(rewards),
        skip=skip,
        solver_indices=() if skip else tuple(learnable),
    )


def score_rounds(
    rounds: Iterable[tuple[Sequence[Proposal], Sequence[Verdicts]]], history: DiversityHistory, settings: RoundSettings
) -> list[ScoredRound]:
    """Score rounds that were generated together, in index order: the same numbers as one after the other."""
    return [score_round(proposals, verdicts, history, settings) for proposals, verdicts in rounds]


def _admitted(proposals: Sequence[Proposal], solvable: Sequence[bool], settings: RoundSettings) -> list[bool]:
    if settings.history_admit == "all":
        return [True] * len(proposals)
    if settings.history_admit == "valid":
        return list(solvable)
    return [bool(p.question) for p in proposals]


def _reward(rate: float | None, diversity: float | None, settings: RoundSettings) -> float | None:
    if rate is None:
        return None
    if settings.reward == "learnability":
        return rate * (1 - rate)
    # without a solvable question the original measures no diversity, and every reward is 0
    return proposer_reward(rate, diversity or 0.0, tau_low=settings.tau_low, tau_div=settings.tau_div, w=settings.w)


def _skip_reason(
    rates: Sequence[float | None], rewards: Sequence[float | None], settings: RoundSettings
) -> SkipReason | None:
    graded = [reward for reward in rewards if reward is not None]
    if not graded:
        return "ungraded"
    # advantages are all zero when the rewards are all equal, rounding aside; as in the original, this reason wins
    if max(graded) - min(graded) < ROUNDING:
        return "advantage"
    return None if any(within_band(rate, settings) for rate in rates) else "pass_rate"


class OfflineIteration:
    """One iteration of the offline variant: a Proposer phase, then a Solver phase, each with bounded tries.

    Ask ``phase`` what comes next, do it, ``record`` whether it updated a policy, until the phase is None.
    """

    def __init__(self, settings: OfflineSettings):
        self._settings = settings
        self.updates = {"proposer": 0, "solver": 0}
        self.tries = {"proposer": 0, "solver": 0}

    def phase(self, buffer_size: int) -> Literal["proposer", "solver"] | None:
        """The next policy to work on; an empty buffer ends the Solver phase."""
        if self._open("proposer", self._settings.proposer_updates, self._settings.max_proposer_tries):
            return "proposer"
        if buffer_size and self._open("solver", self._settings.solver_updates, self._settings.max_solver_tries):
            return "solver"
        return None

    def record(self, phase: Literal["proposer", "solver"], *, updated: bool) -> None:
        """Count one try; a skipped round or a fruitless batch is a try without an update."""
        self.tries[phase] += 1
        self.updates[phase] += updated

    def exhausted(self) -> list[str]:
        """Policies that ran out of tries before they had their updates."""
        wanted = {"proposer": self._settings.proposer_updates, "solver": self._settings.solver_updates}
        limit = {"proposer": self._settings.max_proposer_tries, "solver": self._settings.max_solver_tries}
        return [name for name in wanted if self.updates[name] < wanted[name] and self.tries[name] >= (limit[name] or 0)]

    def _open(self, name: str, updates: int, tries: int | None) -> bool:
        return self.updates[name] < updates and self.tries[name] < (tries or 0)
