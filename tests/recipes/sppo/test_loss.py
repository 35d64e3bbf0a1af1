"""The loss and its gradient against a scalar evaluation in float64, and what must leave both alone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipes.sppo.advantage import sppo_target, win_rates
from recipes.sppo.loss import sequence_log_ratio, sppo_loss


@st.composite
def ragged_batches(draw, min_rows=1):
    """Token log-probs of rows of any length, zero included, with holes as tool tokens leave them."""
    rows, width = draw(st.integers(min_rows, 6)), draw(st.integers(1, 9))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(rows, width, generator=generator, dtype=torch.float64)
    new = -3 * torch.rand(rows, width, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, width, generator=generator) < draw(st.floats(0, 1))
    target = 4 * torch.rand(rows, generator=generator, dtype=torch.float64) - 2
    return old, new, target, mask


def brute_force(old, new, target, mask, normalizer=None):
    """Loss and gradient with respect to `new`, one scalar at a time."""
    total, counted = 0.0, 0
    gradient = [[0.0] * new.shape[1] for _ in range(len(new))]
    for row in range(len(new)):
        tokens = [t for t in range(new.shape[1]) if mask[row, t]]
        if not tokens:
            continue
        counted += 1
        residual = math.fsum(new[row, t].item() - old[row, t].item() for t in tokens) - target[row].item()
        total += residual**2
        for t in tokens:
            gradient[row][t] = 2 * residual
    scale = normalizer if normalizer is not None else max(counted, 1)
    return total / scale, torch.tensor(gradient, dtype=torch.float64) / scale


@given(ragged_batches(), st.sampled_from([None, 1.0, 7.5]))
def test_loss_and_gradient_equal_brute_force(batch, normalizer):
    old, new, target, mask = batch
    leaf = new.clone().requires_grad_()
    loss = sppo_loss(old, leaf, target, mask, normalizer=normalizer)
    loss.backward()
    value, gradient = brute_force(old, new, target, mask, normalizer)
    assert loss.item() == pytest.approx(value, abs=1e-9, rel=1e-9)
    torch.testing.assert_close(leaf.grad, gradient, atol=1e-9, rtol=1e-9)


@given(ragged_batches())
def test_float32_stays_within_a_millionth(batch):
    old, new, target, mask = (part.float() for part in batch)
    leaf = new.clone().requires_grad_()
    loss = sppo_loss(old, leaf, target, mask)
    loss.backward()
    value, gradient = brute_force(old, new, target, mask)
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(value, abs=1e-6, rel=1e-6)
    torch.testing.assert_close(leaf.grad.double(), gradient, atol=1e-6, rtol=1e-6)


def test_gradient_at_the_old_policy_is_reinforce_with_factor_two():
    eta, rewards = 0.7, torch.tensor([1.0, 0.0, 0.0])
    target = sppo_target(rewards, range(3), eta=eta)
    logits = torch.randn(3, 4, 11, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    tokens = torch.arange(12).reshape(3, 4) % 11
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
    log_prob = logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    (gradient,) = torch.autograd.grad(sppo_loss(log_prob, log_prob, target, mask), logits, retain_graph=True)
    policy_gradient = -2 * (target * (log_prob * mask).sum(-1)).sum() / 3
    (expected,) = torch.autograd.grad(policy_gradient, logits)
    torch.testing.assert_close(gradient, expected)


def test_tokens_are_summed_not_averaged():
    old = torch.zeros(1, 8)
    new = torch.full((1, 8), 0.25)
    short = torch.tensor([[1, 1, 1, 1, 0, 0, 0, 0]])
    assert sequence_log_ratio(old, new, short).item() == 1.0
    assert sequence_log_ratio(old, new, torch.ones(1, 8)).item() == 2.0


@given(ragged_batches(), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_padding_and_empty_rows_reach_nothing(batch, poison):
    old, new, target, mask = batch
    clean_leaf = new.clone().requires_grad_()
    clean = sppo_loss(old, clean_leaf, target, mask)
    clean.backward()
    empty = ~mask.any(-1)
    leaf = torch.where(mask, new, poison).requires_grad_()
    loss = sppo_loss(torch.where(mask, old, poison), leaf, torch.where(empty, math.nan, target), mask)
    loss.backward()
    assert loss.item() == clean.item()
    assert torch.equal(leaf.grad, clean_leaf.grad)


def test_a_batch_of_empty_rows_is_zero_with_a_zero_gradient():
    leaf = torch.zeros(2, 3, requires_grad=True)
    loss = sppo_loss(torch.zeros(2, 3), leaf, torch.ones(2), torch.zeros(2, 3))
    loss.backward()
    assert loss.item() == 0 and torch.equal(leaf.grad, torch.zeros(2, 3))


@given(ragged_batches(min_rows=2), st.data())
def test_any_split_into_micro_batches_gives_the_same_gradient(batch, data):
    old, new, target, mask = batch
    whole = new.clone().requires_grad_()
    sppo_loss(old, whole, target, mask, normalizer=len(new)).backward()
    cuts = data.draw(st.sets(st.integers(1, len(new) - 1)))
    bounds = [0, *sorted(cuts), len(new)]
    parts = new.clone().requires_grad_()
    total = 0.0
    for start, end in zip(bounds, bounds[1:], strict=False):
        rows = slice(start, end)
        loss = sppo_loss(old[rows], parts[rows], target[rows], mask[rows], normalizer=len(new))
        loss.backward()
        total += loss.item()
    torch.testing.assert_close(parts.grad, whole.grad, atol=1e-12, rtol=1e-12)
    assert total == pytest.approx(sppo_loss(old, new, target, mask, normalizer=len(new)).item(), abs=1e-9)


def test_long_responses_do_not_round():
    generator = torch.Generator().manual_seed(8)
    old, new = -8 * torch.rand(2, 3, 32768, generator=generator)
    exact = [math.fsum(row.tolist()) for row in new.double() - old.double()]
    assert sequence_log_ratio(old, new, torch.ones(3, 32768)).tolist() == pytest.approx(exact, rel=1e-6)


def test_half_precision_is_summed_in_float32():
    # 2,000 equal differences: a bfloat16 sum stops growing at 256 of its units
    new = torch.full((1, 2000), 0.0078125, dtype=torch.bfloat16)
    assert sequence_log_ratio(torch.zeros_like(new), new, torch.ones(1, 2000)).item() == 15.625


def test_no_gradient_flows_to_the_old_policy_or_the_target():
    old = torch.zeros(1, 2, requires_grad=True)
    target = torch.ones(1, requires_grad=True)
    new = torch.ones(1, 2, requires_grad=True)
    sppo_loss(old, new, target, torch.ones(1, 2)).backward()
    assert old.grad is None and target.grad is None and new.grad is not None


def test_verl_recipe_formula():
    """mean over responses of (D - eta * (r - softmean(r)))^2, as verl's recipe computes it for n = 1."""
    generator = torch.Generator().manual_seed(5)
    old, new = torch.randn(2, 6, 7, generator=generator, dtype=torch.float64)
    mask = (torch.rand(6, 7, generator=generator) < 0.8).double()
    rewards = torch.tensor([1.0, 0, 0, 1, 1, 0], dtype=torch.float64)
    advantage = rewards - (torch.logsumexp(rewards, 0) - math.log(6))
    log_ratio = (new * mask).sum(1) - (old * mask).sum(1)
    expected = ((log_ratio - 1.0 * advantage) ** 2).mean()
    torch.testing.assert_close(sppo_loss(old, new, sppo_target(rewards, range(6)), mask), expected)


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(2), torch.ones(2, 4)),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2), torch.ones(2)),
        (torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 3)),
        (torch.zeros(3), torch.zeros(3), torch.zeros(3), torch.ones(3)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(arguments):
    with pytest.raises(ValueError):
        sppo_loss(*arguments)


@pytest.mark.parametrize("normalizer", [0, -1.0])
def test_a_normalizer_that_is_not_positive_is_refused(normalizer):
    with pytest.raises(ValueError, match="normalizer"):
        sppo_loss(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1), torch.ones(1, 1), normalizer=normalizer)


def test_the_originals_loss_of_a_pair():
    """Worked numbers: eta 1,000, targets +-210.38, log-ratios 0.02 and -0.03; its factor 1/2 is a normaliser of 2."""
    log_prob = torch.tensor([[0.005, 0.015], [-0.03, 0.0]], dtype=torch.float64)
    rates = win_rates(torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0], dtype=torch.float64), "aaaaa", kind="bradley_terry")
    target = sppo_target(rates, "aaaaa", eta=1000.0, scope="prompt", baseline="half")[[0, 4]]
    mask = torch.tensor([[1, 1], [1, 0]])
    loss = sppo_loss(torch.zeros_like(log_prob), log_prob, target, mask, normalizer=2)
    assert loss.item() == pytest.approx(44_248.3, abs=0.1)
