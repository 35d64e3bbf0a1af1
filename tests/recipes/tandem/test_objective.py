"""What verl's own actor loss does with an authorship mask for a response mask."""

import copy

import pytest
import torch
from recorded_batch import CLIP, LENGTHS, advantages_of, gradient, loss_of, recorded_batch


@pytest.fixture
def batch():
    rows, rewards = recorded_batch()
    masks = [row["mask"] for row in rows]
    return rows, masks, advantages_of(masks, rewards), rewards


def test_the_gradient_at_junior_tokens_is_exactly_zero(batch):
    rows, masks, advantages, _ = batch
    gradients = gradient(rows, masks, advantages)
    assert all(bool((g[mask == 0] == 0).all()) for g, mask in zip(gradients, masks, strict=True))
    assert sum(int((g != 0).sum()) for g in gradients) > 0
    # nor do the junior's log-probs, old or new, move anything at the senior's tokens
    moved = copy.deepcopy(rows)
    for row, mask in zip(moved, masks, strict=True):
        row["old"][mask == 0] += 1.7
        row["new"][mask == 0] -= 0.9
    assert all(torch.equal(a, b) for a, b in zip(gradients, gradient(moved, masks, advantages), strict=True))


def test_loss_and_gradient_equal_a_hand_computation_over_senior_tokens(batch):
    rows, masks, advantages, rewards = batch
    standard = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    senior = sum(int(mask.sum()) for mask in masks)
    loss, expected = 0.0, []
    for row, mask, a in zip(rows, masks, standard, strict=True):
        ratio = (row["new"] - row["old"]).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        kept = torch.minimum(ratio * a, clipped * a)
        loss -= float((mask * kept).sum()) / senior
        # the surrogate has a gradient where the unclipped term is the smaller one
        inside = (ratio * a <= clipped * a).float()
        expected.append(-mask * inside * ratio * a / senior)
    assert float(loss_of(rows, masks, advantages)[0]) == pytest.approx(loss, rel=1e-5)
    for found, wanted in zip(gradient(rows, masks, advantages), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("splits", [[[0], [1], [2], [3]], [[3, 0], [2, 1]], [[1], [0, 2, 3]]])
def test_micro_batches_do_not_matter(batch, splits):
    rows, masks, advantages, _ = batch
    for whole, split in zip(gradient(rows, masks, advantages), gradient(rows, masks, advantages, splits), strict=True):
        torch.testing.assert_close(split, whole)


def test_a_response_without_senior_tokens_only_shapes_the_baseline(batch):
    rows, masks, _, rewards = batch
    masks = [torch.zeros_like(masks[0]), *masks[1:]]
    advantages = advantages_of(masks, rewards)
    assert bool((gradient(rows, masks, advantages)[0] == 0).all())
    standard = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    assert float(advantages[1][masks[1] == 1][0]) == pytest.approx(float(standard[1]))


def test_the_response_normaliser_is_the_senior_share_on_the_advantages(batch):
    """Generation B of the published code divides by all response tokens."""
    rows, masks, advantages, _ = batch
    senior, everything = sum(int(mask.sum()) for mask in masks), sum(LENGTHS)
    scaled = [a * (senior / everything) for a in advantages]
    direct, _ = loss_of(rows, masks, advantages, tokens=everything)
    torch.testing.assert_close(loss_of(rows, masks, scaled)[0], direct)
