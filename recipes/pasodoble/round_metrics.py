"""Summarise a step's rounds: metrics, and one record per problem."""

from collections.abc import Sequence
from typing import Any

from recipes.pasodoble.rounds import SKIP_REASONS, ScoredRound
from recipes.pasodoble.sanity import FAULTS

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
