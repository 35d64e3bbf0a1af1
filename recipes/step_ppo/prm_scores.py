"""Reduce step probabilities to one score per trajectory.

Source: LPR code, best_of_filter_by_reward_v2.2.py and _v2.2.1.py.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

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
