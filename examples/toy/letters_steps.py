"""True step labels for the letters world, as a reward function: a line is worth 1 while every line so far is right.

    python -m recipes.step_ppo.main scale=smollm2_135m preset=outcome step_ppo.reward.mode=difference \\
        step_ppo.reward.last_step=outcome step_ppo.reward.values=function \\
        reward.custom_reward_function.path=examples/toy/letters_steps.py
"""

from itertools import chain, repeat
from typing import Any

from reward_fns import math


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict, **_: Any) -> dict:
    """Judge the answer, and each line before it; ``step_scores`` has one number for each line that is not blank."""
    result = math.compute_score(data_source, solution_str, ground_truth, extra_info)
    *lines, _answer = [line for line in solution_str.split("\n") if line.strip()] or [""]
    return {**result, "step_scores": [*step_labels(lines, extra_info["question"]), result["score"]]}


def step_labels(lines: list[str], question: str) -> list[float]:
    """1 for each line that is the next one of the count, 0 from the first one that is not."""
    words = question.rstrip("?").split()
    letter, word = words[2], words[-1].split("-")
    labels, count = [], 0
    for line, one in zip(lines, chain(word, repeat("")), strict=False):
        count += one == letter
        right = line.strip() == f"{one} {'=' if one == letter else '!='} {letter}, {count}."
        labels.append(float(right and all(labels)))
    return labels
