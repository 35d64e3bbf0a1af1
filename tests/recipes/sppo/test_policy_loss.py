"""The policy loss through verl's own ppo_loss: normalisation, metrics, refusals, two data-parallel ranks."""

import math

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

from recipes.sppo.loss import sppo_loss
from recipes.sppo.verl_plugin import compute_sppo_advantage, compute_sppo_policy_loss

PROMPT, RESPONSE, VOCABULARY = 3, 6, 17


def actor_config(**overrides):
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss={"loss_mode": "sppo"},
        **overrides,
    )


def recorded_batch(rows=8, seed=0):
    """Padded tensors of a mini-batch: ragged responses, the last row verl's padding."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, RESPONSE + 1, (rows,), generator=generator)
    mask = (torch.arange(RESPONSE) < lengths.unsqueeze(1)).long()
    mask[-1] = 0
    target = torch.randn(rows, generator=generator)
    return {
        "lengths": lengths,
        "mask": mask,
        "old": -3 * torch.rand(rows, RESPONSE, generator=generator),
        "logits": torch.randn(rows, RESPONSE, VOCABULARY, generator=generator),
        "tokens": torch.randint(0, VOCABULARY, (rows, RESPONSE), generator=generator),
        "target": target,
        "advantages": target.unsqueeze(1) * mask,
    }


def token_log_prob(batch, logits, rows):
    return logits[rows].log_softmax(-1).gather(-1, batch["tokens"][rows].unsqueeze(-1)).squeeze(-1)


def nested(rows_of):
    return torch.nested.as_nested_tensor(list(rows_of), layout=torch.jagged)


def through_verl(batch, logits, rows, *, dp_size=1, global_batch_size=8, config=None, with_entropy=False):
    """Call ppo_loss as an FSDP engine does: jagged sequences of prompt and response, left-shifted log-probs."""
    lengths = batch["lengths"][rows].tolist()
    log_prob = token_log_prob(batch, logits, rows)
    shifted = [
        torch.cat([torch.zeros(PROMPT - 1), log_prob[row, :length], torch.zeros(1)])
        for row, length in enumerate(lengths)
    ]

    def ragged(name):
        return nested(batch[name][rows][row, :length] for row, length in enumerate(lengths))

    data = TensorDict(
        {
            "input_ids": nested(torch.ones(PROMPT + length, dtype=torch.long) for length in lengths),
            "prompts": nested(torch.ones(PROMPT, dtype=torch.long) for _ in lengths),
            "responses": ragged("tokens"),
            "response_mask": ragged("mask"),
            "old_log_probs": ragged("old"),
            "advantages": ragged("advantages"),
        },
        batch_size=len(lengths),
    )
    tu.assign_non_tensor(
        data,
        dp_size=dp_size,
        batch_num_tokens=int(batch["mask"].sum()),
        global_batch_size=global_batch_size,
    )
    output = {"log_probs": nested(shifted)}
    if with_entropy:
        output["entropy"] = nested(torch.ones(PROMPT + length) for length in lengths)
    return ppo_loss(config or actor_config(), output, data)


def whole_gradient(batch):
    logits = batch["logits"].clone().requires_grad_()
    loss, _ = through_verl(batch, logits, slice(None))
    loss.backward()
    return loss.item(), logits.grad


def test_the_plug_in_registers_this_function():
    assert get_policy_loss_fn("sppo") is compute_sppo_policy_loss


def test_ppo_loss_is_the_formula():
    batch = recorded_batch()
    value, gradient = whole_gradient(batch)
    logits = batch["logits"].clone().requires_grad_()
    log_prob = token_log_prob(batch, logits, slice(None))
    expected = sppo_loss(batch["old"], log_prob, batch["target"], batch["mask"], normalizer=8)
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient, logits.grad, atol=1e-6, rtol=1e-6)
    assert not gradient[-1].any()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_micro_batches_accumulate_to_the_same_gradient(size):
    batch = recorded_batch()
    value, gradient = whole_gradient(batch)
    logits = batch["logits"].clone().requires_grad_()
    losses = []
    for start in range(0, 8, size):
        loss, metrics = through_verl(batch, logits, slice(start, start + size))
        loss.backward()
        losses.append(metrics["actor/pg_loss"].aggregate())
    torch.testing.assert_close(logits.grad, gradient, atol=1e-6, rtol=1e-6)
    assert sum(losses) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("dp_size", [2, 4])
def test_averaged_ranks_give_the_same_gradient(dp_size):
    batch = recorded_batch()
    value, gradient = whole_gradient(batch)
    share = 8 // dp_size
    total, losses = torch.zeros_like(gradient), []
    for rank in range(dp_size):
        logits = batch["logits"].clone().requires_grad_()
        rows = slice(rank * share, (rank + 1) * share)
        loss, _ = through_verl(batch, logits, rows, dp_size=dp_size)
        loss.backward()
        total += logits.grad / dp_size
        losses.append(loss.item() / dp_size)
    torch.testing.assert_close(total, gradient, atol=1e-6, rtol=1e-6)
    assert sum(losses) == pytest.approx(value, rel=1e-6)


def test_without_a_global_size_the_trained_rows_are_counted():
    batch = recorded_batch()
    log_prob = token_log_prob(batch, batch["logits"], slice(None))
    loss, _ = compute_sppo_policy_loss(batch["old"], log_prob, batch["advantages"], batch["mask"])
    expected = sppo_loss(batch["old"], log_prob, batch["target"], batch["mask"], normalizer=7)
    torch.testing.assert_close(loss, expected)


def test_metrics_are_means_over_trained_rows():
    batch = recorded_batch()
    _, metrics = through_verl(batch, batch["logits"], slice(None))
    values = {name: metric.aggregate() for name, metric in metrics.items() if isinstance(metric, Metric)}
    log_ratio = ((token_log_prob(batch, batch["logits"], slice(None)) - batch["old"]) * batch["mask"]).sum(1)[:7]
    target = batch["target"][:7]
    assert values["actor/sppo_log_ratio_mean"] == pytest.approx(log_ratio.mean().item(), rel=1e-5)
    assert values["actor/sppo_log_ratio_std"] == pytest.approx(log_ratio.std(unbiased=False).item(), rel=1e-5)
    assert values["actor/sppo_target_mean"] == pytest.approx(target.mean().item(), rel=1e-5)
    assert values["actor/sppo_target_std"] == pytest.approx(target.std(unbiased=False).item(), rel=1e-5)
    assert values["actor/sppo_residual_abs_mean"] == pytest.approx((log_ratio - target).abs().mean().item(), rel=1e-5)


def test_a_micro_batch_of_padding_is_zero_and_finite():
    batch = recorded_batch()
    logits = batch["logits"].clone().requires_grad_()
    loss, metrics = through_verl(batch, logits, slice(7, 8))
    loss.backward()
    assert loss.item() == 0 and not logits.grad.any()
    assert all(math.isfinite(metric.aggregate()) for metric in metrics.values())


def test_verls_entropy_bonus_is_added_beside_the_loss():
    batch = recorded_batch()
    config = actor_config(entropy_coeff=0.1)
    loss, _ = through_verl(batch, batch["logits"], slice(None), config=config, with_entropy=True)
    # the entropy given is 1 on every token, so its mean is 1
    assert loss.item() == pytest.approx(whole_gradient(batch)[0] - 0.1, rel=1e-6)


def test_advantages_of_another_estimator_are_refused():
    batch = recorded_batch()
    varying = batch["advantages"] + torch.arange(RESPONSE)
    with pytest.raises(ValueError, match="adv_estimator=sppo"):
        compute_sppo_policy_loss(batch["old"], batch["old"], varying, batch["mask"])


def test_estimator_and_loss_reproduce_the_original_pairs():
    """Two prompts of K = 3 with eta 1000: the original's loss on (best, worst), without its factor 1/2."""
    scores = torch.tensor([0.3, 2.0, -1.0, 0.0, 0.1, 0.4])
    generator = torch.Generator().manual_seed(2)
    old, new = -2 * torch.rand(2, 6, 4, generator=generator)
    mask = torch.ones(6, 4)
    token_rewards = torch.zeros(6, 4)
    token_rewards[:, -1] = scores
    options = {"eta": 1000.0, "scope": "prompt", "score": "winrate", "baseline": "half", "pairs": "best_worst"}
    options["preference"] = "bradley_terry"
    uid = np.array(list("aaabbb"), dtype=object)
    advantages, _ = compute_sppo_advantage(token_rewards, mask, {"sppo": options}, uid)
    loss, _ = compute_sppo_policy_loss(old, new, advantages, mask)
    expected = []
    for first, best, worst in ((0, 1, 2), (3, 5, 3)):
        group = scores[first : first + 3].double()
        for row in (best, worst):
            rate = torch.sigmoid(scores[row].double() - group).mean()
            expected.append(((new - old)[row].double().sum() - 1000 * (rate - 0.5)) ** 2)
    assert loss.item() == pytest.approx(torch.stack(expected).mean().item(), rel=1e-6)


def test_rows_left_out_whose_mask_was_lost_are_refused():
    batch = recorded_batch()
    batch["advantages"][0] = math.nan
    with pytest.raises(ValueError, match="calculate_log_probs"):
        compute_sppo_policy_loss(batch["old"], batch["old"], batch["advantages"], batch["mask"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss_agg_mode": "seq-mean-token-mean"}, "loss_agg_mode"),
        ({"rollout_is_weights": torch.ones(8, RESPONSE)}, "importance weights"),
    ],
)
def test_what_the_loss_does_not_do_is_refused(options, words):
    batch = recorded_batch()
    with pytest.raises(ValueError, match=words):
        compute_sppo_policy_loss(batch["old"], batch["old"], batch["advantages"], batch["mask"], **options)


def test_ranks_without_a_global_size_are_refused():
    batch = recorded_batch()
    config = actor_config()
    config.global_batch_info["dp_size"] = 2
    with pytest.raises(ValueError, match="global_batch_size"):
        compute_sppo_policy_loss(batch["old"], batch["old"], batch["advantages"], batch["mask"], config=config)
