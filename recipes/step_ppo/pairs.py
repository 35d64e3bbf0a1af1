"""Preference pairs for DPO and process-DPO.

Source: construct_dpo_data_from_react_response.py (all correct times incorrect) and best_of_filter_by_reward_v2.2.py
(process pairs) of the LPR code. Its data set wrote every pair of a question into one shared dict, so that training
saw the last pair of a question again and again; here every pair is its own frozen value and every record is made anew.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

# Of a trajectory's step probabilities to one score. Source: LPR code, best_of_filter_by_reward_v2.2.py and _v2.2.1.py.
Reduction = Literal["product", "min", "sum"]

REDUCTIONS: dict[Reduction, Callable[[Sequence[float]], float]] = {"product": math.prod, "min": min, "sum": math.fsum}


def counted_steps(
    step_scores: Sequence[float], kinds: Sequence[str], *, drop_kinds: Sequence[str] = (), skip_last: int = 0
) -> list[float]:
    """Select the step scores that enter the trajectory score.

    Args:
        step_scores: one per step. kinds: kind of each step.
        drop_kinds: kinds left out; the LPR code drops `Action` on ReClor, since a written action often does not
            follow its thought.
        skip_last: number of final steps left out (2 in its DeepSeekMath variant), counted before `drop_kinds`.

    Raises:
        ValueError: lengths differ, or `skip_last` is negative.
    """
    if len(step_scores) != len(kinds):
        raise ValueError(f"{len(step_scores)} step scores for {len(kinds)} steps")
    if skip_last < 0:
        raise ValueError(f"skip_last must be 0 or more, found {skip_last}")
    stop = max(0, len(step_scores) - skip_last)
    return [score for score, kind in zip(step_scores[:stop], kinds[:stop], strict=True) if kind not in drop_kinds]


PairKind = Literal["contrastive", "positive"]


@dataclass(frozen=True)
class Candidate:
    """One response of a question. `score` and `step_scores` are None where no PRM has read it."""

    index: int
    text: str
    correct: bool
    score: float | None = None
    step_scores: tuple[float, ...] | None = None
    num_lines: int = 0


@dataclass(frozen=True)
class Pair:
    """`chosen` is preferred to `reject`."""

    chosen: Candidate
    reject: Candidate
    kind: PairKind


def outcome_pairs(candidates: Sequence[Candidate], *, max_finish_lines: int | None = 1) -> list[Pair]:
    """Every correct response against every incorrect one, in sampling order (vanilla DPO).

    Args:
        max_finish_lines: a response with more lines than this that hold `Finish[` is not chosen, as in the code's
            configuration; None keeps all.
    """
    chosen = [c for c in candidates if c.correct and _finishes(c, max_finish_lines)]
    wrong = [c for c in candidates if not c.correct]
    return [Pair(c, r, "contrastive") for c in chosen for r in wrong]


def _finishes(candidate: Candidate, most: int | None) -> bool:
    return most is None or sum("Finish[" in line for line in candidate.text.split("\n")) <= most


def process_pairs(
    candidates: Sequence[Candidate],
    *,
    margin: float,
    best_of: int = 10,
    max_negatives: int = 10,
    min_chosen_lines: int = 0,
    min_reject_lines: int = 0,
    positive: bool = True,
) -> list[Pair]:
    """Contrastive pairs, then positive-positive pairs, of one question (process-DPO).

    Responses without a score are left out. The `best_of` correct responses with the highest scores are chosen, in
    sampling order. Each is paired with the `max_negatives` incorrect responses with the highest scores, whatever the
    difference, and with every correct response whose score is smaller by **more than** `margin`. Ties keep sampling
    order.

    Args:
        margin: smallest difference of scores in positive-positive pairs, exclusive.
        min_chosen_lines, min_reject_lines: positive-positive pairs need at least so many lines on each side.
        positive: whether to make positive-positive pairs (not for questions the PRM was trained on).

    Raises:
        ValueError: a negative margin, which would pair a response with itself, or a bound below 1.
    """
    if margin < 0:
        raise ValueError(f"margin must be 0 or more, found {margin}")
    if best_of < 1 or max_negatives < 0:
        raise ValueError(
            f"best_of must be at least 1 and max_negatives at least 0, found {best_of} and {max_negatives}"
        )
    scored = [c for c in candidates if c.score is not None]
    right = sorted((c for c in scored if c.correct), key=lambda c: -(c.score or 0.0))
    wrong = sorted((c for c in scored if not c.correct), key=lambda c: -(c.score or 0.0))
    chosen = sorted(right[:best_of], key=lambda c: c.index)
    contrastive = [Pair(c, r, "contrastive") for c in chosen for r in wrong[:max_negatives]]
    if not positive:
        return contrastive
    return contrastive + [
        Pair(c, r, "positive")
        for c in chosen
        if c.num_lines >= min_chosen_lines
        for r in right
        if r.num_lines >= min_reject_lines and (c.score or 0.0) - (r.score or 0.0) > margin
    ]


def one_pair_per_question(pairs: Sequence[Pair], rng: random.Random) -> list[Pair]:
    """At most one pair, drawn at random: the amount of distinct data the LPR code's aliased data set held, for
    comparison."""
    return [rng.choice(pairs)] if pairs else []


def pair_record(question_id: str, pair: Pair) -> dict:
    """The published pair format with a key: a new, unshared dict each time."""
    return {
        "key": f"{question_id}/{pair.kind}/{pair.chosen.index}-{pair.reject.index}",
        "id": question_id,
        "kind": pair.kind,
        "chosen": pair.chosen.text,
        "reject": pair.reject.text,
        "chosen_reward": pair.chosen.score,
        "reject_reward": pair.reject.score,
        "chosen_full_rewards": None if pair.chosen.step_scores is None else list(pair.chosen.step_scores),
        "reject_full_rewards": None if pair.reject.step_scores is None else list(pair.reject.step_scores),
    }


def candidates_of(
    trajectory: dict,
    scores: dict | None,
    *,
    reduction: Reduction,
    drop_kinds: Sequence[str],
    skip_last: int,
) -> list[Candidate]:
    """Candidates of one question from its records of `collect` and `score`.

    Raises:
        ValueError: the score record belongs to other responses.
    """
    scored = {} if scores is None else {s["response_index"]: s for s in scores["scores"]}
    if scored and max(scored) >= len(trajectory["responses"]):
        raise ValueError(
            f"question {trajectory['id']}: scores for response {max(scored)} of {len(trajectory['responses'])}: "
            "the score file was made from other trajectories"
        )
    candidates = []
    for index, response in enumerate(trajectory["responses"]):
        score, steps = None, None
        if index in scored:
            judged = scored[index]
            counted = counted_steps(judged["step_scores"], judged["kinds"], drop_kinds=drop_kinds, skip_last=skip_last)
            if counted:
                score, steps = REDUCTIONS[reduction](counted), tuple(counted)
        lines = len(response["text"].split("\n"))
        candidates.append(Candidate(index, response["text"], bool(response["correct"]), score, steps, lines))
    return candidates
