"""Score one round of the game, and order rounds and updates.

Source: PasoDoble, ``pasodoble_online.py`` and ``pasodoble_offline.py``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from recipes.pasodoble.diversity import DiversityHistory
from recipes.pasodoble.parsing import FAULTS, Fault, find_fault
from recipes.pasodoble.settings import OfflineSettings, RoundSettings


def proposer_reward(
    pass_rate: Any, diversity: Any, *, tau_low: float = 0.2, tau_div: float = 0.3, w: float = 0.2
) -> Any:
    r"""Compute the reward of a proposal with pass rate :math:`p` and diversity :math:`d`: high for hard problems, 0 for
    unsolved and for repeated ones (PasoDoble, ``_score_completions`` in ``proposergrpo_trainer.py``).

    .. math:: r = (1.1 - p) + w d \quad\text{if } p > \tau_{low} \text{ and } d > \tau_{div},\quad\text{else } 0

    Args:
        pass_rate: share of the Solver's responses that agree with the Proposer's answer, after the sanity check; in
            [0, 1]; a number, or an array or tensor of any shape.
        diversity: share of the history that the question is not similar to; in [0, 1]; same shape or broadcastable.

    Returns:
        The reward: a float for numbers, else an array or tensor of the broadcast shape.

    Raises:
        ValueError: if a pass rate or a diversity lies outside [0, 1] or is not a number.
    """
    if isinstance(pass_rate, torch.Tensor) or isinstance(diversity, torch.Tensor):
        p, d, where = torch.as_tensor(pass_rate), torch.as_tensor(diversity), torch.where
    else:
        p, d, where = np.asarray(pass_rate), np.asarray(diversity), np.where
    for name, value in (("pass_rate", p), ("diversity", d)):
        if not bool(((value >= 0) & (value <= 1)).all()):
            raise ValueError(f"{name} must lie in [0, 1], got {value.tolist()}")
    reward = where((p > tau_low) & (d > tau_div), (1.1 - p) + w * d, 0.0)
    return reward if isinstance(reward, torch.Tensor) or reward.ndim else float(reward)


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
        target = {"proposer": self._settings.proposer_updates, "solver": self._settings.solver_updates}
        limit = {"proposer": self._settings.max_proposer_tries, "solver": self._settings.max_solver_tries}
        return [name for name in target if self.updates[name] < target[name] and self.tries[name] >= (limit[name] or 0)]

    def _open(self, name: str, updates: int, tries: int | None) -> bool:
        return self.updates[name] < updates and self.tries[name] < (tries or 0)


_BANDS = ("0", "to_0.2", "to_0.4", "to_0.6", "to_0.8", "below_1", "1")


def pass_rate_band(rate: float) -> str:
    """Return the histogram's band: exactly 0, the fifths with their upper end, exactly 1."""
    if rate <= 0:
        return "0"
    if rate >= 1:
        return "1"
    edges = (0.2, 0.4, 0.6, 0.8)
    return _BANDS[1 + sum(rate > edge for edge in edges)]


def round_metrics(rounds: Sequence[ScoredRound]) -> dict[str, float]:
    """Average over all proposals of the rounds; see the metric dictionary in REFERENCE.md. Always the same keys."""
    faults = [fault for r in rounds for fault in r.faults]
    rates = [rate for r in rounds for rate in r.pass_rates if rate is not None]
    raw = [rate for r in rounds for rate in r.raw_pass_rates if rate is not None]
    rewards = [reward for r in rounds for reward in r.rewards if reward is not None]
    diversities = [d for r in rounds for d in r.diversities if d is not None]
    metrics = {
        "game/rounds": float(len(rounds)),
        "game/skipped": _share([r.skip is not None for r in rounds]),
        "game/parsed": _share([bool(p.question and p.answer) for r in rounds for p in r.proposals]),
        "game/valid": _share([fault is None for fault in faults]),
        "game/ungraded": _share([rate is None for r in rounds for rate in r.pass_rates]),
        "game/pass_rate": _share(rates),
        "game/raw_pass_rate": _share(raw),
        "game/proposer_reward": _share(rewards),
        "game/proposer_rewarded": _share([reward > 0 for reward in rewards]),
        "game/solver_questions": _share([len(r.solver_indices) for r in rounds]),
    }
    if diversities:
        metrics["game/diversity"] = _share(diversities)
    metrics |= {f"game/skip/{reason}": _share([r.skip == reason for r in rounds]) for reason in SKIP_REASONS}
    metrics |= {f"game/fault/{name}": _share([fault == name for fault in faults]) for name in FAULTS}
    metrics |= {
        f"game/pass_rate_histogram/{band}": _share([pass_rate_band(r) == band for r in rates]) for band in _BANDS
    }
    return metrics


def problems(rounds: Sequence[ScoredRound], step: int) -> list[dict[str, Any]]:
    """Make one JSON-ready entry for each proposal."""
    return [
        {
            "step": step,
            "round": number,
            "question": proposal.question,
            "answer": proposal.answer,
            "fault": r.faults[i],
            "pass_rate": r.raw_pass_rates[i],
            "diversity": r.diversities[i],
            "reward": r.rewards[i],
            "skip": r.skip,
        }
        for number, r in enumerate(rounds)
        for i, proposal in enumerate(r.proposals)
    ]


def _share(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
