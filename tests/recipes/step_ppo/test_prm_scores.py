"""Trajectory scores."""

import pytest

from recipes.step_ppo.pairs import REDUCTIONS, counted_steps

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
    counted = counted_steps(SCORES, KINDS, drop_kinds=drop_kinds, skip_last=skip_last)
    assert REDUCTIONS[reduction](counted) == pytest.approx(expected, abs=1e-12)


def test_every_step_counts_by_default():
    assert counted_steps(SCORES, KINDS) == SCORES


def test_no_step_may_be_left():
    assert counted_steps(SCORES, KINDS, drop_kinds=("Thought", "Action", "Observation")) == []
    assert counted_steps(SCORES, KINDS, skip_last=9) == []


def test_refusals():
    with pytest.raises(ValueError, match="4 step scores for 3 steps"):
        counted_steps(SCORES, KINDS[:3])
    with pytest.raises(ValueError, match="skip_last"):
        counted_steps(SCORES, KINDS, skip_last=-1)
