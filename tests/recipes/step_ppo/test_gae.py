"""Advantages against the textbook sum, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.step_ppo.advantage import gae


def by_hand(rewards, values, mask, gamma, lam):
    """A_t = sum_l (gamma lam)^l delta_{t+l}, over the unmasked tokens of one row."""
    kept = [t for t in range(len(mask)) if mask[t]]
    v = [float(values[t]) for t in kept] + [0.0]
    r = [float(rewards[t]) for t in kept]
    deltas = [r[i] + gamma * v[i + 1] - v[i] for i in range(len(kept))]
    advantages = [0.0] * len(mask)
    for i, t in enumerate(kept):
        advantages[t] = sum((gamma * lam) ** (j - i) * deltas[j] for j in range(i, len(kept)))
    return advantages


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 9), st.floats(0, 1), st.floats(0, 1))
def test_equals_the_sum_of_deltas(seed, rows, length, gamma, lam):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(rows, length, generator=generator, dtype=torch.float64)
    values = torch.randn(rows, length, generator=generator, dtype=torch.float64)
    mask = torch.randint(0, 2, (rows, length), generator=generator)
    advantages, returns = gae(rewards, values, mask, gamma=gamma, lam=lam)
    expected = torch.tensor(
        [by_hand(rewards[i], values[i], mask[i], gamma, lam) for i in range(rows)], dtype=torch.float64
    )
    torch.testing.assert_close(advantages, expected, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(returns, (expected + values) * mask, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -float("inf")])
def test_masked_tokens_may_hold_anything(junk):
    mask = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0]])
    rewards, values = (torch.where(mask > 0, torch.ones(2, 4), junk) for _ in range(2))
    for whiten in (False, True):
        found = gae(rewards, values, mask, lam=1.0, whiten=whiten)
        clean = gae(rewards.nan_to_num(0, 0, 0), values.nan_to_num(0, 0, 0), mask, lam=1.0, whiten=whiten)
        assert all(torch.equal(one, other) for one, other in zip(found, clean, strict=True))


def test_a_row_worked_out_on_paper():
    # one step reward on token 1, one on token 3; gamma 1, lambda .5
    rewards = torch.tensor([[0.0, 0.5, 0.0, 1.0]])
    values = torch.tensor([[0.2, 0.4, 0.6, 0.8]])
    advantages, returns = gae(rewards, values, torch.ones(1, 4), gamma=1.0, lam=0.5)
    # deltas .2, .7, .2, .2
    torch.testing.assert_close(advantages, torch.tensor([[0.625, 0.85, 0.3, 0.2]]))
    torch.testing.assert_close(returns, advantages + values)


def test_whitening_is_a_flag():
    torch.manual_seed(0)
    rewards, values = torch.randn(4, 5), torch.randn(4, 5)
    mask = torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [1] * 4 + [0], [1] * 5])
    raw, returns = gae(rewards, values, mask)
    white, white_returns = gae(rewards, values, mask, whiten=True)
    kept = white[mask.bool()]
    assert abs(kept.mean()) < 1e-6 and abs(kept.std() - 1) < 1e-4
    torch.testing.assert_close(returns, white_returns)
    assert abs(raw[mask.bool()].mean()) > 1e-3
    assert white[~mask.bool()].tolist() == [0.0] * 3


def test_refusals():
    with pytest.raises(ValueError, match="shapes"):
        gae(torch.zeros(1, 2), torch.zeros(1, 3), torch.ones(1, 3))
    with pytest.raises(ValueError, match="two unmasked"):
        gae(torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[1, 0]]), whiten=True)


def test_the_defaults_are_no_discount_and_lambda_095():
    rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.25]])
    advantages, _ = gae(rewards, values, torch.ones(1, 2))
    # deltas -.25, .75
    torch.testing.assert_close(advantages, torch.tensor([[-0.25 + 0.95 * 0.75, 0.75]]))


def test_two_tokens_can_be_whitened_and_equal_advantages_become_zero():
    zeros, ones = torch.zeros(1, 2), torch.ones(1, 2)
    white, _ = gae(torch.tensor([[3.0, 1.0]]), zeros, ones, gamma=0.0, whiten=True)
    torch.testing.assert_close(white, torch.tensor([[0.5**0.5, -(0.5**0.5)]]))
    white, _ = gae(ones, zeros, ones, gamma=0.0, whiten=True)
    assert torch.equal(white, zeros)
