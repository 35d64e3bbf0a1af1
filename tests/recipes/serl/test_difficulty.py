"""Agreement bounds at their edges."""

import pytest

from recipes.serl.voting import check_bounds, judge_difficulty


@pytest.mark.parametrize(
    ("winners", "verdict"),
    [
        (0, "too_hard"),
        (1, "too_hard"),
        (3, "too_hard"),
        (4, None),
        (8, None),
        (12, None),
        (13, "too_easy"),
        (16, "too_easy"),
    ],
)
def test_of_sixteen_responses_winners_of_4_to_12_stay(winners, verdict):
    assert judge_difficulty(winners / 16) == verdict


@pytest.mark.parametrize("n", range(2, 33))
def test_both_bounds_are_inclusive_for_every_group_size(n):
    for winners in range(n + 1):
        inside = 2 * n <= 10 * winners <= 8 * n
        assert (judge_difficulty(winners / n) is None) == inside


def test_default_bounds_of_the_ground_truth_variant_keep_all():
    assert all(judge_difficulty(k / 16, low=0.0, high=1.0) is None for k in range(17))


@pytest.mark.parametrize(("low", "high"), [(-0.1, 0.5), (0.2, 1.1), (0.8, 0.2), (float("nan"), 0.5)])
def test_bad_bounds_are_refused(low, high):
    with pytest.raises(ValueError, match="0 <= low <= high <= 1"):
        check_bounds(low, high)


@pytest.mark.parametrize("agreement", [-0.01, 1.01, float("nan")])
def test_bad_agreement_is_refused(agreement):
    with pytest.raises(ValueError, match="0..1"):
        judge_difficulty(agreement)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.2, 0.8), (0.5, 0.5)])
def test_bounds_may_be_the_ends_of_the_scale_or_one_value(low, high):
    check_bounds(low, high)
