"""PURE's estimators on the worked numbers of the method, and what they must not depend on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipes.step_ppo import pure
from recipes.step_ppo.pure import Rollout, pure_rloo, pure_token
from recipes.step_ppo.rewards import softmin
from recipes.step_ppo.verifiable import keeps_answer


def rollout(step_rewards, tokens_per_step, outcome=None, prompt="p", kl=0.0):
    ends = [tokens_per_step * (k + 1) - 1 for k in range(len(step_rewards))]
    rewards = torch.zeros(tokens_per_step * len(step_rewards), dtype=torch.float64)
    rewards[ends] = torch.tensor(softmin(step_rewards), dtype=torch.float64)
    return Rollout(prompt, rewards, ends, torch.full_like(rewards, kl), outcome)


A = [0.9, 0.8, -0.6, 0.7]
B = [0.9, 0.8, 0.7]


@pytest.fixture
def raw(monkeypatch):
    """The advantages before the batch's normalisation, which the worked numbers leave out."""
    monkeypatch.setattr(pure, "_normalised", lambda rows, counted: list(rows))


def at_step_starts(row, tokens_per_step):
    return row[::tokens_per_step].tolist()


def test_pure_token_by_hand(raw):
    a, b = pure_token([rollout(A, 3), rollout(B, 2)], outcome_weight=0.0)
    assert at_step_starts(a, 3) == pytest.approx([-1.59, -1.3425, -1.095, -0.2475], abs=1e-3)
    assert at_step_starts(b, 2) == pytest.approx([0.8925, 0.7615, 0.5157], abs=1e-3)
    # The tokens of a step have the return of its reward; its last token has none.
    assert a[1] == a[0] and a[[2, 5, 8, 11]].tolist() == [0.0] * 4


def test_outcomes_stand_on_the_last_token_against_the_others(raw):
    a, b = pure_token([rollout(A, 3, outcome=0.0), rollout(B, 2, outcome=1.0)], outcome_weight=1.0)
    assert a[9].item() == pytest.approx(-1.2475, abs=1e-3) and b[4].item() == pytest.approx(1.5157, abs=1e-3)
    half, _ = pure_token([rollout(A, 3, outcome=0.0), rollout(B, 2, outcome=1.0)], outcome_weight=0.5)
    assert half[9].item() == pytest.approx(-0.7475, abs=1e-3)
    without, _ = pure_token([rollout(A, 3), rollout(B, 2)], outcome_weight=1.0)
    assert without[9].item() == pytest.approx(-0.2475, abs=1e-3)


def test_an_outcome_that_is_alone_in_its_group_counts_nothing(raw):
    plain = pure_token([rollout(A, 3), rollout(B, 2)], outcome_weight=1.0)
    for outcomes in ((1.0, None), (None, 1.0)):
        found = pure_token([rollout(A, 3, outcomes[0]), rollout(B, 2, outcomes[1])], outcome_weight=1.0)
        assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))


def test_the_outcome_reaches_tokens_after_the_last_step(raw):
    right, wrong = (Rollout("p", torch.zeros(4), [1], torch.zeros(4), outcome) for outcome in (1.0, 0.0))
    found = pure_token([right, wrong], outcome_weight=0.5)
    assert [row.tolist() for row in found] == [[0.5, 0.0, 0.5, 0.5], [-0.5, 0.0, -0.5, -0.5]]


def test_two_tokens_are_enough_to_normalise():
    found = pure_token([rollout([0.9], 2), rollout([-0.6], 2)], outcome_weight=0.0)
    assert [row.tolist() for row in found] == [pytest.approx([x, 0.0], abs=1e-3) for x in (0.7071, -0.7071)]


@pytest.mark.parametrize(("limit", "baseline"), [(12, 0.3116), (24, 0.1558)])
def test_pure_rloo_by_hand(raw, limit, baseline):
    a, b = pure_rloo([rollout(A, 3), rollout(B, 2)], outcome_weight=0.0, max_response_length=limit)
    assert a[:9].tolist() == pytest.approx([-0.6 - baseline] * 9, abs=1e-3)
    assert a[9:].tolist() == pytest.approx([-baseline] * 3, abs=1e-3)
    # B's baseline is the return of A's nine tokens up to its worst step.
    assert b[0].item() == pytest.approx(0.7425 + 0.6 * 9 / limit, abs=1e-3)


def test_pure_rloo_gives_the_outcome_a_baseline_of_its_own(raw):
    plain = pure_rloo([rollout(A, 3), rollout(B, 2)], outcome_weight=1.0, max_response_length=12)
    outcomes = (0.0, 1.0, 1.0)
    three = [rollout(A, 3, outcomes[0]), rollout(B, 2, outcomes[1]), rollout(B, 2, outcomes[2])]
    with_outcome = pure_rloo(three, outcome_weight=1.0, max_response_length=12)
    without = pure_rloo(three, outcome_weight=0.0, max_response_length=12)
    moved = [float((x - y)[0]) for x, y in zip(with_outcome, without, strict=True)]
    assert moved == pytest.approx([-1.0, 0.5, 0.5]) and len(plain) == 2


@pytest.mark.parametrize("estimator", ["pure_token", "pure_rloo"])
def test_kl_is_subtracted_from_the_rewards_of_its_token_and_those_before(raw, estimator):
    more = {"max_response_length": 12} if estimator == "pure_rloo" else {}
    function = getattr(pure, estimator)
    kl = torch.zeros(12, dtype=torch.float64)
    kl[4] = 0.25
    first = rollout(A, 3)
    base = function([first, rollout(B, 2)], outcome_weight=0.0, **more)[0]
    charged = Rollout("p", first.rewards, first.step_ends, kl)
    found = function([charged, rollout(B, 2)], outcome_weight=0.0, **more)[0]
    expected = torch.zeros(12, dtype=torch.float64)
    expected[:5] = -0.25
    if estimator == "pure_token":
        expected[2] = 0.0
    torch.testing.assert_close(found - base, expected)


def raw_returns(function, rollouts, more):
    """The advantages before normalisation."""
    kept = pure._normalised
    pure._normalised = lambda rows, counted: [row[counts] for row, counts in zip(rows, counted, strict=True)]
    try:
        return function(rollouts, outcome_weight=0.0, **more)
    finally:
        pure._normalised = kept


step_values = st.lists(st.floats(-1, 1), min_size=1, max_size=5)


@given(st.lists(st.tuples(step_values, st.integers(2, 4)), min_size=2, max_size=5), st.sampled_from(pure.ESTIMATORS))
def test_batches_are_normalised_and_groups_do_not_mix(rows, estimator):
    more = {"max_response_length": 20} if estimator == "pure_rloo" else {}
    function = getattr(pure, estimator)
    rollouts = [rollout(values, tokens, prompt=number % 2) for number, (values, tokens) in enumerate(rows)]
    found = function(rollouts, outcome_weight=0.0, **more)
    alone = [number for number in range(len(rows)) if sum(n % 2 == number % 2 for n in range(len(rows))) == 1]
    counted = []
    for number, (row, one) in enumerate(zip(found, rollouts, strict=True)):
        assert row.shape == one.rewards.shape and torch.isfinite(row).all()
        if number in alone:
            assert not row.any()
            continue
        kept = torch.ones(len(row), dtype=torch.bool)
        if estimator == "pure_token":
            kept[list(one.step_ends)] = False
            assert not row[~kept].any()
        counted.append(row[kept])
    tokens = torch.cat(counted) if counted else torch.zeros(0)
    if tokens.numel() > 1:
        assert abs(float(tokens.mean())) < 1e-6
        # Shrunk only where the returns hardly differ: EPSILON stands beside their variance.
        assert float(tokens.var()) <= 1.0 + 1e-6
        spread = [row.var() for row in raw_returns(function, rollouts, more) if row.numel() > 1]
        if spread and max(spread) > 1e-4:
            assert float(tokens.var()) == pytest.approx(1.0, abs=1e-3)


def test_a_share_of_the_prompts_keeps_its_answer_always_the_same_ones():
    prompts = [[7, number, number + 1] for number in range(4000)]
    kept = [keeps_answer(prompt, 0.1) for prompt in prompts]
    assert kept == [keeps_answer(list(prompt), 0.1) for prompt in prompts]
    assert 330 < sum(kept) < 470
    assert not any(keeps_answer(prompt, 0.0) for prompt in prompts) and all(keeps_answer(p, 1.0) for p in prompts)
    more = [keeps_answer(prompt, 0.5) for prompt in prompts]
    assert all(large or not small for small, large in zip(kept, more, strict=True)), "a larger share keeps the smaller"


def test_the_baseline_of_pure_rloo_is_the_others_return_less_their_kl(raw):
    first, other, charged = rollout(A, 3), rollout(B, 2), rollout(B, 2, kl=0.1)
    base = pure_rloo([first, other], outcome_weight=0.0, max_response_length=12)[0]
    found = pure_rloo([first, charged], outcome_weight=0.0, max_response_length=12)[0]
    # The sums over what follows each of six tokens: 0.1 x (6 + 5 + 4 + 3 + 2 + 1), over one response of 12 tokens.
    torch.testing.assert_close(found - base, torch.full((12,), 2.1 / 12, dtype=torch.float64))
