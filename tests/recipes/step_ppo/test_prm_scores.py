"""Trajectory scores."""

import pytest

from recipes.step_ppo.prm_scores import trajectory_score

SCORES = [0.5, 0.9, 0.8, 0.2]
KINDS = ["Thought", "Action", "Observation", "Action"]


@pytest.mark.parametrize(
    ("reduction", "drop_kinds", "skip_last", "expected"),
    [
        ("product", (), 0, 0.072),
        ("product", ("Action",), 0, 0.4),
        ("min", (), 0, 0.2),
        ("min", ("Action",), 0, 0.5),
        ("sum", (), 0, 2.4),
        ("sum", ("Action", "Observation"), 0, 0.5),
        ("product", (), 2, 0.45),
        ("product", ("Action",), 2, 0.5),
    ],
)
def test_scores(reduction, drop_kinds, skip_last, expected):
    score = trajectory_score(SCORES, KINDS, reduction=reduction, drop_kinds=drop_kinds, skip_last=skip_last)
    assert score == pytest.approx(expected, abs=1e-12)


def test_refusals():
    with pytest.raises(ValueError, match="no step"):
        trajectory_score(SCORES, KINDS, drop_kinds=("Thought", "Action", "Observation"))
    with pytest.raises(ValueError, match="no step"):
        trajectory_score(SCORES, KINDS, skip_last=9)
    with pytest.raises(ValueError, match="median"):
        trajectory_score(SCORES, KINDS, reduction="median")
    with pytest.raises(ValueError, match="4 step scores for 3 steps"):
        trajectory_score(SCORES, KINDS[:3])
    with pytest.raises(ValueError, match="skip_last"):
        trajectory_score(SCORES, KINDS, skip_last=-1)
