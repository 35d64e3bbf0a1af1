"""The reward function of the recipe: rule-based where a gold answer is known, left to the vote where none is."""

from typing import Any

from reward_fns.math import compute_score as compute_math_score
from reward_fns.result import Score, to_verl

NO_GOLD = "no_gold"
"""Reason of the placeholder Score where a prompt has no gold answer: a vote replaces it, no metric reads it."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict | None = None, **kwargs: Any
) -> dict[str, float | str]:
    """verl's signature: the rule-based score where a gold answer is known, else a placeholder with reason `no_gold`.

    The trainer replaces the score of every training response by its vote, except in the variant `ground_truth`.
    """
    if ground_truth is None or ground_truth == "":
        return to_verl(Score(0.0, reason=NO_GOLD))
    return compute_math_score(data_source, solution_str, ground_truth, extra_info, **kwargs)
