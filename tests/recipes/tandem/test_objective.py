"""What verl's own actor loss does with an authorship mask for a response mask."""

import copy

import pytest
import torch
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.workers.config import FSDPActorConfig, FSDPOptimizerConfig
from verl.workers.utils.losses import ppo_loss

PROMPT, LENGTHS = 3, (5, 4, 6, 5)
VOCABULARY, CLIP = 11, 0.2


def recorded_batch(seed=0):
    """Four responses to one prompt, two authors, rewards, and log-probs that a few updates moved apart."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in LENGTHS:
        old = torch.randn(length, generator=generator)
        rows.append(
            {
                "new": old + 0.3 * torch.randn(length, generator=generator),
                "old": old,
                "mask": torch.randint(0, 2, (length,), generator=generator),
            }
        )
    return rows, torch.tensor([1.0, 0.0, 0.0, 1.0])


def advantages_of(masks, rewards):
    padded = pad_sequence(masks, batch_first=True)
    token_rewards = torch.zeros(padded.shape)
    token_rewards[:, 0] = rewards
    found, _ = compute_grpo_outcome_advantage(token_rewards, padded.float(), index=["prompt"] * len(masks))
    return [row[: len(mask)] for row, mask in zip(found, masks, strict=True)]


def jagged(rows):
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def actor_config():
    return FSDPActorConfig(
        strategy="fsdp",
        rollout_n=4,
        ppo_mini_batch_size=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=CLIP,
        clip_ratio_low=CLIP,
        clip_ratio_high=CLIP,
        optim=FSDPOptimizerConfig(lr=1e-6),
    )


def loss_of(rows, masks, advantages, select=None, tokens=None):
    """`ppo_loss` on the chosen rows as one micro-batch of the batch; returns it with the log-prob leaves."""
    chosen = range(len(rows)) if select is None else select
    leaves = {i: rows[i]["new"].clone().requires_grad_() for i in chosen}
    # verl's model output covers prompt and response, each position holding the log-prob of the token after it.
    whole = [torch.cat([torch.zeros(PROMPT - 1), leaf, torch.zeros(1)]) for leaf in leaves.values()]
    data = TensorDict(
        {
            "prompts": jagged(torch.zeros(PROMPT, dtype=torch.long) for _ in chosen),
            "responses": jagged(torch.zeros(len(masks[i]), dtype=torch.long) for i in chosen),
            "attention_mask": jagged(torch.ones(PROMPT + len(masks[i]), dtype=torch.long) for i in chosen),
            "response_mask": jagged(masks[i] for i in chosen),
            "old_log_probs": jagged(rows[i]["old"] for i in chosen),
            "advantages": jagged(advantages[i] for i in chosen),
        },
        batch_size=len(leaves),
    )
    total = int(sum(mask.sum() for mask in masks)) if tokens is None else tokens
    for name, value in {"dp_size": 1, "batch_num_tokens": total, "global_batch_size": len(rows)}.items():
        data.set_non_tensor(name, value)
    loss, _ = ppo_loss(actor_config(), {"log_probs": jagged(whole)}, data)
    return loss, leaves


def gradient(rows, masks, advantages, splits=None):
    """Summed over micro-batches, per row."""
    found = {}
    for select in splits or [range(len(rows))]:
        loss, leaves = loss_of(rows, masks, advantages, select)
        loss.backward()
        found |= {i: leaf.grad for i, leaf in leaves.items()}
    return [found[i] for i in range(len(rows))]


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
