"""The three estimators against plain loops in double precision, and where verl's own differ."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.serl.estimators import grpo_advantage, reinforce_pp_advantage, rloo_advantage


def loop_returns(score, kl, mask, kl_coef, gamma):
    last = max((t for t, m in enumerate(mask) if m), default=None)
    rewards = [
        (-kl_coef * k + (min(max(score, -10), 10) if t == last else 0.0)) * m
        for t, (k, m) in enumerate(zip(kl, mask, strict=True))
    ]
    return [sum(gamma ** (u - t) * rewards[u] for u in range(t, len(rewards))) for t in range(len(rewards))]


def loop_whiten(returns, masks):
    valid = [r for row, mask in zip(returns, masks, strict=True) for r, m in zip(row, mask, strict=True) if m]
    mean = sum(valid) / len(valid)
    variance = max(sum((r - mean) ** 2 for r in valid) / len(valid), 1e-8)
    return [
        [(r - mean) / math.sqrt(variance) * m for r, m in zip(row, mask, strict=True)]
        for row, mask in zip(returns, masks, strict=True)
    ]


def batch(seed, n_groups=3, n=4, length=6, binary=True):
    rng = random.Random(seed)
    rows = n_groups * n
    scores = [float(rng.random() < 0.5) if binary else rng.uniform(-20, 20) for _ in range(rows)]
    masks = [[float(t < size) for t in range(length)] for size in (rng.randint(1, length) for _ in range(rows))]
    kl = [[rng.gauss(0, 1) for _ in range(length)] for _ in range(rows)]
    index = [f"prompt{i // n}" for i in range(rows)]
    order = rng.sample(range(rows), rows)
    return [[values[i] for i in order] for values in (scores, masks, kl, index)]


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def others_mean(scores, index, i):
    others = [s for j, s in enumerate(scores) if index[j] == index[i] and j != i]
    return sum(others) / len(others)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([0.0, 1e-4, 0.1]), st.sampled_from([1.0, 0.9]))
def test_reinforce_pp_equals_the_loop(seed, binary, kl_coef, gamma):
    scores, masks, kl, _ = batch(seed, binary=binary)
    expected = [loop_returns(s, k, m, kl_coef, gamma) for s, k, m in zip(scores, kl, masks, strict=True)]
    advantages, returns = reinforce_pp_advantage(
        double(scores), double(kl), double(masks), kl_coef=kl_coef, gamma=gamma
    )
    assert torch.allclose(returns, double(expected) * double(masks), atol=1e-9)
    assert torch.allclose(advantages, double(loop_whiten(expected, masks)), atol=1e-6)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([0.0, 1e-4, 0.1]))
def test_rloo_equals_the_loop(seed, binary, kl_coef):
    scores, masks, kl, index = batch(seed, binary=binary)
    shaped = [s - others_mean(scores, index, i) for i, s in enumerate(scores)]
    expected = [loop_returns(s, k, m, kl_coef, 1.0) for s, k, m in zip(shaped, kl, masks, strict=True)]
    advantages, returns = rloo_advantage(double(scores), index, double(kl), double(masks), kl_coef=kl_coef)
    assert torch.allclose(returns, double(expected) * double(masks), atol=1e-9)
    assert torch.allclose(advantages, double(loop_whiten(expected, masks)), atol=1e-6)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_grpo_equals_the_loop(seed, binary):
    scores, masks, _, index = batch(seed, binary=binary)
    expected = []
    for i, (score, mask) in enumerate(zip(scores, masks, strict=True)):
        group = [s for j, s in enumerate(scores) if index[j] == index[i]]
        expected.append([(score - np.mean(group)) / (np.std(group, ddof=1) + 1e-9) * m for m in mask])
    advantages, returns = grpo_advantage(double(scores), index, double(masks))
    assert torch.allclose(advantages, double(expected), atol=1e-6) and torch.equal(advantages, returns)


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_order_of_rows_and_padding_do_not_matter(seed):
    scores, masks, kl, index = batch(seed)
    order = random.Random(seed + 1).sample(range(len(scores)), len(scores))
    pad = torch.nn.functional.pad
    for estimate in (
        lambda s, i, k, m: reinforce_pp_advantage(s, k, m, kl_coef=0.1)[0],
        lambda s, i, k, m: rloo_advantage(s, i, k, m, kl_coef=0.1)[0],
        lambda s, i, k, m: grpo_advantage(s, i, m)[0],
    ):
        plain = estimate(double(scores), index, double(kl), double(masks))
        moved = estimate(double(scores)[order], [index[i] for i in order], double(kl)[order], double(masks)[order])
        assert torch.allclose(moved, plain[order], atol=1e-9)
        padded = estimate(
            double(scores), index, pad(double(kl), (0, 3), value=float("nan")), pad(double(masks), (0, 3))
        )
        assert torch.allclose(padded, pad(plain, (0, 3)), atol=1e-9)


@pytest.mark.parametrize("n", [3, 8, 16])
@pytest.mark.parametrize("score", [0.0, 1.0, 0.1, 1 / 3, 0.7, 0.9])
def test_unanimous_groups_have_no_grpo_and_no_rloo_signal(score, n):
    # in float32 the mean of sixteen 0.1 is not 0.1, and the difference over its own deviation was -0.9
    scores, index, mask = torch.full((2 * n,), score), ["a", "b"] * n, torch.ones(2 * n, 3)
    assert torch.equal(grpo_advantage(scores, index, mask)[0], torch.zeros(2 * n, 3))
    assert torch.equal(rloo_advantage(scores, index, None, mask, kl_coef=0.0)[0], torch.zeros(2 * n, 3))


def test_statistics_before_the_difficulty_filter_shift_reinforce_pp():
    mask = torch.ones(12, 1)
    scores = torch.tensor([1.0] * 8 + [1.0, 1.0, 0.0, 0.0])
    before = reinforce_pp_advantage(scores, None, mask, kl_coef=0.0)[0][8:, 0]
    after = reinforce_pp_advantage(scores[8:], None, mask[8:], kl_coef=0.0)[0][:, 0]
    assert before.tolist() == pytest.approx([math.sqrt(0.2), math.sqrt(0.2), -math.sqrt(5), -math.sqrt(5)])
    assert after.tolist() == pytest.approx([1, 1, -1, -1])


def test_a_group_of_one_and_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="'b' has one"):
        grpo_advantage(torch.ones(3), ["a", "a", "b"], torch.ones(3, 2))
    with pytest.raises(ValueError, match="index names"):
        rloo_advantage(torch.ones(3), ["a"], None, torch.ones(3, 2), kl_coef=0.0)
    with pytest.raises(ValueError, match=r"scores \(B,\)"):
        reinforce_pp_advantage(torch.ones(3, 2), None, torch.ones(3, 2), kl_coef=0.0)


def test_without_a_trained_token_there_is_nothing_to_learn():
    scores, mask = torch.tensor([1.0, 0.0]), torch.zeros(2, 3)
    for advantages, returns in (
        reinforce_pp_advantage(scores, None, mask, kl_coef=0.0),
        rloo_advantage(scores, ["a", "a"], None, mask, kl_coef=0.0),
        grpo_advantage(scores, ["a", "a"], mask),
    ):
        assert torch.equal(advantages, torch.zeros(2, 3)) and torch.equal(returns, torch.zeros(2, 3))


def test_no_discount_by_default_and_no_kl_without_its_coefficient():
    mask = torch.ones(1, 3)
    _, returns = reinforce_pp_advantage(torch.ones(1), torch.full((1, 3), math.inf), mask, kl_coef=0.0)
    assert torch.equal(returns, mask)


def on_last_token(scores, masks):
    rewards = torch.zeros_like(masks)
    return rewards.scatter_(1, masks.long().sum(1, keepdim=True) - 1, scores.unsqueeze(1))


def test_where_verl_differs():
    from verl.trainer.ppo import core_algos

    scores, masks, kl, index = batch(5, n_groups=8)
    scores, masks, kl = double(scores), double(masks), double(kl)
    score_only, names, n_tokens = on_last_token(scores, masks), np.array(index, dtype=object), masks.sum().item()

    # Reinforce++: verl divides by the unbiased deviation and adds 1e-8 where the reference clamps.
    theirs, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        score_only - 0.1 * kl * masks, masks, config=SimpleNamespace(gamma=1.0)
    )
    ours, _ = reinforce_pp_advantage(scores, kl, masks, kl_coef=0.1)
    assert not torch.allclose(ours, theirs, atol=1e-4)
    assert torch.allclose(ours, theirs * math.sqrt(n_tokens / (n_tokens - 1)), atol=1e-6)

    # GRPO: the same up to the epsilon beside the standard deviation.
    theirs, _ = core_algos.compute_grpo_outcome_advantage(score_only.clone(), masks, names)
    ours, _ = grpo_advantage(scores, index, masks)
    assert 0 < (ours - theirs).abs().max() < 1e-5

    # RLOO: verl stops after leave-one-out, and its baseline holds the KL of the other responses.
    theirs, _ = core_algos.compute_rloo_outcome_advantage(score_only.clone(), masks, names)
    ours, returns = rloo_advantage(scores, index, None, masks, kl_coef=0.0)
    assert torch.allclose(returns, theirs, atol=1e-9) and not torch.allclose(ours, theirs, atol=0.1)
    theirs, _ = core_algos.compute_rloo_outcome_advantage(score_only - 0.1 * kl * masks, masks, names)
    _, returns = rloo_advantage(scores, index, kl, masks, kl_coef=0.1)
    assert not torch.allclose(returns, theirs, atol=1e-3)


def test_the_epsilon_of_grpo_is_added_to_the_deviation():
    scores = double([0.0, 2e-9])
    advantages, _ = grpo_advantage(scores, ["p", "p"], double([[1.0], [1.0]]))
    assert advantages[1].item() == pytest.approx(1e-9 / (2e-9 / math.sqrt(2) + 1e-9))
