"""A loss weight of the junior's tokens: numbers by hand, verl's own loss, and a step's rows in the real data plane."""

import copy

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from recorded_batch import CLIP, LENGTHS, advantages_of, gradient, loss_of, recorded_batch
from tensordict import NonTensorStack, TensorDict

from recipes.tandem.agent_loop import COUNTS
from recipes.tandem.junior_weight import token_weights
from recipes.tandem.settings import TandemSettings
from vllm_patches.tandem.config import TandemConfig
from vllm_patches.tandem.outputs import AuthorshipError

REWARDS = (1.0, 0.0, 0.0, 1.0)


def test_weights_by_hand():
    mask = torch.tensor([1, 0, 0, 1, 0, 0])
    # four tokens by the pair, two that verl's token builder added
    found = token_weights(mask, emitted=4, senior_tokens=2, weight=0.25)
    assert found.tolist() == [1.0, 0.25, 0.25, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(("emitted", "senior_tokens"), [(3, 2), (4, 1), (4, 3)])
def test_a_mask_that_is_not_the_verified_one_is_refused(emitted, senior_tokens):
    with pytest.raises(AuthorshipError, match="when its mask was verified"):
        token_weights(torch.tensor([1, 0, 0, 1, 0]), emitted, senior_tokens, 0.5)
    with pytest.raises(AuthorshipError):
        token_weights(torch.tensor([1, 0, 0, 1, 1]), 4, 2, 0.5)


def step(queue, masks, weight, normaliser="senior"):
    """verl's advantages of four responses to a prompt and a padding row, by the trainer: what the update would read."""
    from recipes.core import data_plane
    from recipes.core.data_plane import jagged
    from recipes.tandem.trainer import TandemTrainer

    trainer = TandemTrainer.__new__(TandemTrainer)
    trainer.settings = TandemSettings(normaliser=normaliser, junior_token_loss_weight=weight)
    trainer.tandem, trainer.junior_weight = TandemConfig(junior_model="m"), weight
    trainer.config = OmegaConf.create(
        {
            "algorithm": {
                "use_kl_in_reward": False,
                "rollout_correction": {"bypass_mode": False, "rollout_is": None, "rollout_rs": None},
                "adv_estimator": "grpo",
                "gamma": 1.0,
                "lam": 1.0,
                "norm_adv_by_std_in_grpo": True,
            },
            "actor_rollout_ref": {"rollout": {"n": 4}},
        }
    )
    lengths = [*LENGTHS, 1]
    total = sum(LENGTHS)
    trainer.senior_share = sum(int(mask.sum()) for mask in masks) / total
    rows, _ = recorded_batch()
    # verl's token builder added a token to the first response, and filled the batch up with a padding row
    masks = [torch.cat([masks[0], torch.zeros(1, dtype=torch.long)]), *masks[1:], torch.zeros(1, dtype=torch.long)]
    lengths[0] += 1
    old = [torch.cat([rows[0]["old"], torch.zeros(1)]), *(row["old"] for row in rows[1:]), torch.zeros(1)]
    # the rollout's log-probs: the senior's own at its tokens, the junior's elsewhere
    rollout = [torch.where(mask == 1, log_prob, -9.0) for mask, log_prob in zip(masks, old, strict=True)]
    scores = [torch.zeros(length) for length in lengths]
    for row, reward in zip(scores, REWARDS, strict=False):
        row[-1] = reward
    counts = [
        {COUNTS: dict(responses=1, tokens=n, senior_tokens=int(mask.sum()), turns=2, redraws=0, senior_redraws=0)}
        for n, mask in zip(LENGTHS, masks, strict=False)
    ]
    keys = ["a_0_0", "a_1_0", "a_2_0", "a_3_0", "pad_0_0"]
    fields = {
        "uid": NonTensorStack(*["a"] * 4, "pad"),
        "response_mask": jagged(masks),
        "loss_mask": jagged(masks),
        "rm_scores": jagged(scores),
        "rollout_log_probs": jagged(rollout),
        "old_log_probs": jagged(old),
        "extra_fields": NonTensorStack(*counts, counts[0]),
    }
    tags = [{"is_padding": key.startswith("pad")} for key in keys]
    queue.kv_batch_put(keys=keys, partition_id="train", fields=TensorDict(fields, batch_size=5), tags=tags)
    batch = data_plane.KVBatchMeta(keys=list(keys), tags=tags, partition_id="train", extra_info={})
    metrics = {}
    try:
        batch = trainer._compute_advantage(batch, metrics)
        found = data_plane.read(batch, "advantages", "response_mask", "loss_mask")
        # as the engine hands them on: `loss_mask` is summed over the mini-batch
        padding = {name: values.pop() for name, values in found.items()}
        assert all(not row.any() for row in padding.values())
        added = {name: values[0][-1] for name, values in found.items()}
        assert not any(added.values())
        return {name: [values[0][:-1], *values[1:]] for name, values in found.items()}, metrics
    finally:
        queue.kv_clear(keys=keys, partition_id="train")


def update(found):
    """Loss and gradients of verl's `ppo_loss` on what the step wrote."""
    rows, _ = recorded_batch()
    tokens = sum(row.sum() for row in found["loss_mask"]).item()
    loss, _ = loss_of(rows, found["response_mask"], found["advantages"], tokens=tokens)
    return loss.detach(), gradient(rows, found["response_mask"], found["advantages"], tokens=tokens)


@pytest.fixture(scope="module")
def masks():
    """Those of the recorded batch; the third response has no token of the senior's."""
    rows, _ = recorded_batch()
    found = [row["mask"] for row in rows]
    return [*found[:2], torch.zeros_like(found[2]), found[3]]


class TestOnTheDataPlane:
    @pytest.mark.parametrize("normaliser", ["senior", "response"])
    @pytest.mark.parametrize("weight", [0.2, 0.5, 1.0])
    def test_loss_and_gradient_equal_a_hand_computation(self, queue, masks, weight, normaliser):
        found, _ = step(queue, masks, weight, normaliser)
        rows, rewards = recorded_batch()
        standard = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        weights = [torch.where(mask == 1, 1.0, weight) for mask in masks]
        n = sum(float(row.sum()) for row in weights) if normaliser == "senior" else sum(LENGTHS)
        loss, expected = 0.0, []
        for row, m, a in zip(rows, weights, standard, strict=True):
            ratio = (row["new"] - row["old"]).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            loss -= float((m * torch.minimum(ratio * a, clipped * a)).sum()) / n
            expected.append(-m * (ratio * a <= clipped * a).float() * ratio * a / n)
        measured, gradients = update(found)
        assert float(measured) == pytest.approx(loss, rel=1e-5)
        for seen, wanted in zip(gradients, expected, strict=True):
            torch.testing.assert_close(seen, wanted)
        assert bool(gradients[2].any()), "a response without senior tokens is trained by its weight"

    @pytest.mark.parametrize("normaliser", ["senior", "response"])
    def test_weight_one_is_grpo_on_all_tokens(self, queue, masks, normaliser):
        found, _ = step(queue, masks, 1.0, normaliser)
        everything = [torch.ones_like(mask) for mask in masks]
        plain = {
            "advantages": advantages_of(everything, torch.tensor(REWARDS)),
            "response_mask": everything,
            "loss_mask": everything,
        }
        for seen, wanted in zip(update(found), update(plain), strict=True):
            assert (
                all(torch.equal(a, b) for a, b in zip(seen, wanted, strict=True))
                if isinstance(seen, list)
                else torch.equal(seen, wanted)
            )

    def test_weight_zero_is_what_it_was(self, queue, masks):
        found, _ = step(queue, masks, 0.0)
        before = advantages_of(masks, torch.tensor(REWARDS))
        assert all(torch.equal(a, b) for a, b in zip(found["advantages"], before, strict=True))
        for name in ("response_mask", "loss_mask"):
            assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found[name], masks, strict=True))

    def test_a_small_weight_comes_near_to_none(self, queue, masks):
        near, without = (update(step(queue, masks, weight)[0]) for weight in (1e-6, 0.0))
        torch.testing.assert_close(near[0], without[0], rtol=1e-4, atol=1e-5)
        for a, b in zip(near[1], without[1], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

    def test_rollout_and_actor_are_compared_at_the_seniors_tokens(self, queue, masks):
        """The junior's log-probs are nine nats off."""
        _, metrics = step(queue, masks, 0.5)
        assert metrics["rollout_corr/kl"] == pytest.approx(0, abs=1e-6)


def test_the_dual_clip_is_linear_in_the_advantage_too():
    """verl's loss has a third branch, for negative advantages and large ratios."""
    rows, _ = recorded_batch()
    rows = copy.deepcopy(rows)
    for row in rows:
        row["new"] = row["old"] + 2.0
    masks = [torch.ones(n, dtype=torch.long) for n in LENGTHS]
    advantages = [torch.full((n,), -1.0) for n in LENGTHS]
    whole, _ = loss_of(rows, masks, advantages)
    fifth, _ = loss_of(rows, masks, [row * 0.2 for row in advantages])
    assert float(whole) == pytest.approx(3.0) and float(fifth) == pytest.approx(0.6)
    assert np.isclose(float(fifth), 0.2 * float(whole))
