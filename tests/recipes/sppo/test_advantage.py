"""Targets, baselines and win rates against closed forms and brute force."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.sppo.advantage import best_worst, softmean, sppo_target, win_rates

SCORES = st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=12)


def brute_softmean(values, beta):
    return math.log(math.fsum(math.exp(beta * v) for v in values) / len(values)) / beta


def test_softmean_limits():
    scores = torch.tensor([0.3, -1.0, 2.0])
    assert softmean(scores, 0.0) == pytest.approx(scores.mean().item(), abs=1e-7)
    assert softmean(scores, 1e6) == pytest.approx(2.0, abs=1e-5)
    assert softmean(scores, -1e6) == pytest.approx(-1.0, abs=1e-5)
    assert softmean(torch.full((7,), 0.25), 3.0) == 0.25
    assert softmean(torch.tensor([1.0, 0.0]), 1.0) == pytest.approx(0.620115, abs=1e-6)


def test_softmean_keeps_its_digits_when_beta_is_small():
    # mean + beta/2 * variance to first order
    scores = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    assert softmean(scores, 1e-9).item() == pytest.approx(0.5 + 0.5e-9 * 0.25, abs=1e-15)


def test_a_small_beta_does_not_overflow_over_far_scores():
    scores = torch.tensor([0.0, 4000.0], dtype=torch.float64)
    assert softmean(scores, 0.5).item() == pytest.approx(4000 - 2 * math.log(2))
    assert softmean(scores, -0.5).item() == pytest.approx(2 * math.log(2))


def test_published_targets_of_a_binary_reward():
    target = sppo_target(torch.tensor([1.0, 0.0, 0.0, 1.0]), list("abcd"))
    expected = torch.tensor([0.379885, -0.620115, -0.620115, 0.379885])
    torch.testing.assert_close(target, expected, atol=1e-6, rtol=0)
    assert target.mean() < 0


@given(SCORES, st.floats(0.05, 20))
def test_batch_softmean_target_equals_brute_force(values, eta):
    target = sppo_target(torch.tensor(values, dtype=torch.float64), range(len(values)), eta=eta)
    value = brute_softmean(values, eta)
    expected = torch.tensor([eta * (v - value) for v in values], dtype=torch.float64)
    torch.testing.assert_close(target, expected, atol=1e-9, rtol=1e-9)


@given(st.data())
def test_prompt_scope_is_batch_scope_of_each_prompt(data):
    values = torch.tensor(data.draw(SCORES))
    index = data.draw(st.lists(st.sampled_from("pqr"), min_size=len(values), max_size=len(values)))
    eta = data.draw(st.floats(0.1, 5))
    for baseline in ("softmean", "mean", "half"):
        together = sppo_target(values, np.array(index, dtype=object), eta=eta, scope="prompt", baseline=baseline)
        for prompt in set(index):
            rows = [i for i, name in enumerate(index) if name == prompt]
            alone = sppo_target(values[rows], [prompt] * len(rows), eta=eta, scope="batch", baseline=baseline)
            torch.testing.assert_close(together[rows], alone, atol=1e-6, rtol=1e-6)


@given(st.data())
def test_permuted_rows_give_permuted_results(data):
    values = torch.tensor(data.draw(SCORES))
    index = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values))))
    order = torch.tensor(data.draw(st.permutations(range(len(values)))))
    for scope in ("batch", "prompt"):
        moved = sppo_target(values[order], index[order], scope=scope)
        torch.testing.assert_close(moved, sppo_target(values, index, scope=scope)[order], atol=1e-6, rtol=1e-6)
    for kind in ("binary", "bradley_terry"):
        moved = win_rates(values[order], index[order], kind=kind)
        torch.testing.assert_close(moved, win_rates(values, index, kind=kind)[order], atol=1e-6, rtol=1e-6)


def test_equal_rewards_have_target_zero():
    for scope in ("batch", "prompt"):
        for baseline in ("softmean", "mean"):
            target = sppo_target(torch.full((6,), 0.7), list("aabbbc"), eta=3.0, scope=scope, baseline=baseline)
            assert torch.equal(target, torch.zeros(6))


def test_huge_exponents_stay_finite():
    target = sppo_target(torch.tensor([0.0, 900.0, -900.0]), range(3), eta=1000.0)
    expected = 1000.0 * torch.tensor([-900.0, 0.0, -1800.0]) + math.log(3)
    torch.testing.assert_close(target, expected, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_narrow_scores_are_widened(dtype):
    target = sppo_target(torch.tensor([1, 0], dtype=dtype), "ab")
    assert target.dtype == torch.float32
    torch.testing.assert_close(target, torch.tensor([0.379885, -0.620115]), atol=1e-6, rtol=0)


def test_target_beyond_the_type_is_refused():
    with pytest.raises(ValueError, match="lower eta"):
        sppo_target(torch.tensor([3e38, -3e38]), "ab", eta=10.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_scores_are_named(bad):
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        sppo_target(torch.tensor([0.0, bad]), "ab")
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        win_rates(torch.tensor([0.0, bad]), "aa")
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        softmean(torch.tensor([0.0, bad]), 1.0)
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        best_worst(torch.tensor([0.0, bad]), "aa")


@pytest.mark.parametrize("arguments", [(torch.zeros(2, 2), "ab"), (torch.zeros(0), ""), (torch.zeros(2), "a")])
def test_shapes_that_do_not_fit_are_refused(arguments):
    with pytest.raises(ValueError):
        sppo_target(*arguments)


# win rates


@given(st.data())
def test_win_rates_equal_brute_force_and_centre_on_one_half(data):
    values = data.draw(SCORES)
    index = data.draw(st.lists(st.sampled_from("pqr"), min_size=len(values), max_size=len(values)))
    tau = data.draw(st.floats(0.1, 10))
    rules = {
        "binary": lambda a, b: 0.5 * (1 + (a > b) - (a < b)),
        "bradley_terry": lambda a, b: 1 / (1 + math.exp((b - a) / tau)),
    }
    for kind, beats in rules.items():
        rates = win_rates(torch.tensor(values, dtype=torch.float64), index, kind=kind, tau=tau)
        for row, (value, prompt) in enumerate(zip(values, index, strict=True)):
            rivals = [other for other, name in zip(values, index, strict=True) if name == prompt]
            expected = math.fsum(beats(value, other) for other in rivals) / len(rivals)
            assert rates[row].item() == pytest.approx(expected, abs=1e-12)
        for prompt in set(index):
            rows = [i for i, name in enumerate(index) if name == prompt]
            assert (rates[rows] - 0.5).sum().item() == pytest.approx(0, abs=1e-9)


def test_a_single_response_ties_with_itself():
    assert win_rates(torch.tensor([7.0]), ["a"]).item() == 0.5


def test_bradley_terry_survives_extreme_margins():
    rates = win_rates(torch.tensor([1e30, -1e30]), "aa", kind="bradley_terry", tau=1e-3)
    assert rates.tolist() == [0.75, 0.25]


def test_the_originals_targets_and_gpos():
    """Worked numbers: five scores, Bradley-Terry win rates, eta 1,000, and the mean preference score of GPO."""
    scores = torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0], dtype=torch.float64)
    rates = win_rates(scores, "aaaaa", kind="bradley_terry")
    assert rates.tolist() == pytest.approx([0.7104, 0.6097, 0.5, 0.3903, 0.2896], abs=1e-4)
    target = sppo_target(rates, "aaaaa", eta=1000.0, scope="prompt", baseline="half")
    assert target[[0, 4]].tolist() == pytest.approx([210.38, -210.38], abs=1e-2)
    gpo = sppo_target(scores + 3, "aaaaa", eta=2.0, scope="prompt", baseline="mean")
    assert gpo.tolist() == pytest.approx([2.0, 1.0, 0.0, -1.0, -2.0])


# selection


def test_best_and_worst_of_each_prompt():
    scores = torch.tensor([0.2, 0.9, 0.1, 5.0, 0.9, 0.1, 4.0])
    assert best_worst(scores, "aaabaab").tolist() == [False, True, True, True, False, False, True]


def test_equal_scores_leave_one_row():
    assert best_worst(torch.ones(3), "aaa").tolist() == [True, False, False]


@settings(max_examples=50)
@given(st.data())
def test_selection_holds_the_extremes(data):
    values = torch.tensor(data.draw(SCORES))
    index = data.draw(st.lists(st.sampled_from("pq"), min_size=len(values), max_size=len(values)))
    chosen = best_worst(values, index)
    for prompt in set(index):
        rows = torch.tensor([i for i, name in enumerate(index) if name == prompt])
        kept = values[rows[chosen[rows]]]
        assert 1 <= len(kept) <= 2
        assert kept.max() == values[rows].max() and kept.min() == values[rows].min()
