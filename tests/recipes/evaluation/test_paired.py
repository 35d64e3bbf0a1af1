"""Intervals and paired comparison against enumeration and known tests."""

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recipes.evaluation.stats import bootstrap_mean, compare, holm, sign_flip_p_value, wilson


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9), st.sampled_from([1, 2, 4, 6, 16]))
@example([1, -3, -2, 3, 1], 6)
@settings(deadline=None)
def test_the_exact_p_value_equals_enumeration_of_every_sign_pattern(steps, n):
    values = [step / n for step in steps]
    observed = abs(sum(steps))
    sums = [abs(sum(s * v for s, v in zip(signs, steps, strict=True))) for signs in product((1, -1), repeat=len(steps))]
    p_value, method = sign_flip_p_value(values)
    assert method == "exact sign-flip"
    assert p_value == pytest.approx(sum(total >= observed for total in sums) / len(sums), abs=1e-9)


@pytest.mark.parametrize(("wins", "losses"), [(10, 2), (3, 0), (7, 7), (40, 21)])
def test_one_greedy_response_per_problem_is_mcnemars_exact_test(wins, losses):
    discordant = wins + losses
    tail = sum(comb(discordant, i) for i in range(min(wins, losses) + 1)) / 2**discordant
    p_value, _ = sign_flip_p_value([1.0] * wins + [-1.0] * losses + [0.0] * 100)
    assert p_value == pytest.approx(min(1.0, 2 * tail), abs=1e-9)


def test_many_differences_are_sampled_and_agree_with_the_exact_distribution():
    values = list(np.random.default_rng(0).integers(-4, 6, size=40) / 4)
    chance = np.ones(1)
    for value in filter(None, values):
        # The distribution of the sum over all sign patterns, in quarters, is a convolution.
        spread = np.zeros(2 * round(4 * abs(value)) + 1)
        spread[0] = spread[-1] = 0.5
        chance = np.convolve(chance, spread)
    sums = np.abs(np.arange(chance.size) - chance.size // 2)
    p_value, method = sign_flip_p_value(values)
    assert method == "Monte Carlo sign-flip"
    assert p_value == pytest.approx(chance[sums >= round(4 * abs(sum(values)))].sum(), abs=0.01)
    assert sign_flip_p_value(values) == sign_flip_p_value(values)


def test_no_difference_at_all():
    assert sign_flip_p_value([0.0, 0.0]) == (1.0, "exact sign-flip")


def test_a_comparison_counts_wins_and_losses_and_is_antisymmetric():
    a = {"1": 0.0, "2": 0.5, "3": 1.0, "4": 0.0}
    b = {"1": 1.0, "2": 0.5, "3": 0.5, "4": 1.0}
    forward, backward = compare(a, b), compare(b, a)
    assert (forward.wins, forward.losses, forward.problems) == (2, 1, 4)
    assert forward.difference.mean == pytest.approx(0.375)
    assert backward.difference.mean == pytest.approx(-0.375)
    assert forward.p_value == backward.p_value


def test_other_problems_are_refused_by_name():
    with pytest.raises(ValueError, match=r"only in the first: 1 \['2'\], only in the second: 1 \['3'\]"):
        compare({"1": 1.0, "2": 0.0}, {"1": 1.0, "3": 0.0})


@pytest.mark.timeout(60)
def test_a_thousand_problems_of_16_responses_are_compared_in_time():
    generator = np.random.default_rng(1)
    a, b = ({str(i): generator.integers(0, 17) / 16 for i in range(1000)} for _ in range(2))
    assert compare(a, b).problems == 1000


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(7)
    covered = 0
    for seed in range(300):
        interval = bootstrap_mean(generator.random(80) < 0.3, resamples=800, seed=seed)
        covered += interval.low <= 0.3 <= interval.high
    assert 0.90 <= covered / 300 <= 0.98


def test_the_interval_is_a_function_of_values_and_seed():
    values = list(np.random.default_rng(2).random(30))
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3)
    assert bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_scores_that_are_all_equal_have_wilsons_interval(score):
    assert bootstrap_mean([score] * 40) == pytest.approx(wilson(40 * score, 40))


@pytest.mark.parametrize("values", [[], [0.5, float("nan")]])
def test_no_problems_and_no_numbers_are_refused(values):
    with pytest.raises(ValueError, match="found"):
        bootstrap_mean(values)


def test_wilson_interval_at_an_end_has_its_closed_form():
    z2 = 1.959963984540054**2
    assert wilson(0, 500) == pytest.approx((0.0, 0.0, z2 / (500 + z2)), abs=1e-14)


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_impossible_counts(successes, trials):
    with pytest.raises(ValueError, match="must"):
        wilson(successes, trials)


def test_holm_by_hand_and_in_any_order():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.999))
def test_holm_rejects_what_its_step_down_rule_rejects(p_values, level):
    rejected = set()
    for rank, position in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if (len(p_values) - rank) * p_values[position] > level:
            break
        rejected.add(position)
    assert {position for position, value in enumerate(holm(p_values)) if value <= level} == rejected
