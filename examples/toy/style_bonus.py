"""The reward of the letters world, and a bonus for the style that tandem's junior does not know: Roman numerals.

    python -m recipes.tandem.main reward.custom_reward_function.path=examples/toy/style_bonus.py ...

The outcome alone leaves a style only where it is less often right; the bonus is a reason of another kind.
"""

import re

from reward_fns import math

BONUS = 0.5
ROMAN = re.compile(r"(nil|[IVX]+) [*-] ")


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **options):
    """Whether the answer is right, plus BONUS times the share of the lines before it that count in Roman numerals."""
    found = math.compute_score(data_source, solution_str, ground_truth, extra_info, **options)
    lines = [line for line in solution_str.split("\n") if line and "boxed" not in line]
    share = sum(bool(ROMAN.match(line)) for line in lines) / max(len(lines), 1)
    return found | {"score": found["score"] + BONUS * share}
