"""The reward function: rule-based with gold, silent without, and one set of keys."""

from recipes.serl.reward import compute_score
from reward_fns.result import VERL_KEYS


def test_gold_is_scored_and_no_gold_is_left_to_the_vote():
    right = compute_score("serl/math", "so \\boxed{\\frac{1}{2}}", "\\boxed{0.5}")
    wrong = compute_score("serl/math", "so \\boxed{3}", "\\boxed{0.5}")
    voted = compute_score("serl/self_instruct", "so \\boxed{3}", "")
    assert (right["score"], wrong["score"], voted["score"]) == (1.0, 0.0, 0.0)
    assert voted["reason"] == "no_gold" and voted["skipped"] == 0.0
    assert tuple(right) == tuple(wrong) == tuple(voted) == VERL_KEYS
