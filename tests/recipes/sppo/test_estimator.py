"""The advantage estimator through verl's own compute_advantage."""

import math

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from recipes.errors import ConfigError
from recipes.sppo.advantage import sppo_target, win_rates
from recipes.sppo.verl_plugin import compute_sppo_advantage

PAPER = {"scope": "prompt", "score": "winrate", "baseline": "half"}


def batch_of(rewards, uids, width=5, empty=()):
    """Reward on the last token of responses of different lengths; rows in `empty` have no trained token."""
    mask = torch.zeros(len(rewards), width, dtype=torch.int64)
    token_rewards = torch.zeros(len(rewards), width)
    for row, reward in enumerate(rewards):
        length = 1 + row % width
        token_rewards[row, length - 1] = reward
        mask[row, :length] = row not in empty
    return token_rewards, mask, np.array(uids, dtype=object)


def through_verl(token_rewards, mask, uid, options):
    data = DataProto.from_dict(
        tensors={"token_level_rewards": token_rewards, "response_mask": mask}, non_tensors={"uid": uid}
    )
    keys = [f"{name}_{row}_0" for row, name in enumerate(uid)]
    config = OmegaConf.create({"adv_estimator": "sppo", "sppo": options})
    data = compute_advantage_for_multi_trajectories(data, batch_keys=keys, adv_estimator="sppo", config=config)
    return data.batch["advantages"], data.batch["returns"], data.batch["response_mask"]


def test_the_plug_in_registers_this_function():
    assert get_adv_estimator_fn("sppo") is compute_sppo_advantage


def test_advantages_are_the_targets_on_trained_tokens():
    rewards, uids = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.5], list("aabbbcc")
    for options in (
        {},
        {"eta": 2.5},
        {"baseline": "mean"},
        {"baseline": "half"},
        {"scope": "prompt"},
        {"scope": "prompt", "baseline": "mean"},
        {"scope": "prompt", "baseline": "half"},
    ):
        token_rewards, mask, uid = batch_of(rewards, uids)
        advantages, returns, _ = through_verl(token_rewards, mask, uid, options)
        target = sppo_target(torch.tensor(rewards), uids, **options)
        torch.testing.assert_close(advantages, target.unsqueeze(-1) * mask)
        assert torch.equal(advantages, returns)


@pytest.mark.parametrize(("preference", "tau"), [("binary", 1.0), ("bradley_terry", 0.5)])
@pytest.mark.parametrize("baseline", ["half", "mean", "softmean"])
def test_paper_mode_targets_are_win_rates(preference, tau, baseline):
    rewards, uids = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.5], list("aabbbcc")
    token_rewards, mask, uid = batch_of(rewards, uids)
    options = PAPER | {"eta": 3.0, "baseline": baseline, "preference": preference, "tau": tau}
    advantages, _, _ = through_verl(token_rewards, mask, uid, options)
    rates = win_rates(torch.tensor(rewards), uids, kind=preference, tau=tau)
    target = sppo_target(rates, uids, eta=3.0, scope="prompt", baseline=baseline)
    torch.testing.assert_close(advantages, target.unsqueeze(-1) * mask)


@pytest.mark.parametrize("options", [{}, {"scope": "prompt"}, PAPER])
def test_rows_without_trained_tokens_take_no_part(options):
    rewards, uids = [1.0, 0.0, 9.0, 1.0, 0.0], list("aaabb")
    token_rewards, mask, uid = batch_of(rewards, uids, empty={2})
    advantages, _, _ = through_verl(token_rewards, mask, uid, options)
    kept = [0, 1, 3, 4]
    alone = batch_of([rewards[row] for row in kept], [uids[row] for row in kept])
    expected, _, _ = through_verl(*alone, options)
    assert torch.equal(advantages[kept, 0], expected[:, 0])
    assert not advantages[2].any()


def test_a_batch_of_padding_is_zero():
    token_rewards, mask, uid = batch_of([0.0, 0.0], list("ab"), empty={0, 1})
    advantages, returns, _ = through_verl(token_rewards, mask, uid, {})
    assert not advantages.any() and not returns.any()


def test_best_worst_clears_the_rows_between():
    rewards, uids = [0.2, 0.9, 0.1, 0.5, 1.0, 0.0], list("aaaabb")
    token_rewards, mask, uid = batch_of(rewards, uids)
    everyone, _, _ = through_verl(token_rewards, mask.clone(), uid, PAPER)
    advantages, _, cleared = through_verl(token_rewards, mask.clone(), uid, PAPER | {"pairs": "best_worst"})
    kept = [1, 2, 4, 5]
    assert cleared.any(-1).nonzero().flatten().tolist() == kept
    assert torch.equal(cleared[kept], mask[kept])
    # win rates are against all responses, the ones left out too
    assert torch.equal(advantages[kept], everyone[kept])


def test_best_worst_takes_a_judges_win_rates():
    """Rewards that are win rates already, of a preference that goes in a circle but for one winner and one loser."""
    rates, uids = [0.5, 0.9, 0.5, 0.1, 0.5], list("aaaaa")
    options = {"scope": "prompt", "score": "reward", "baseline": "half", "pairs": "best_worst", "eta": 4.0}
    token_rewards, mask, uid = batch_of(rates, uids)
    advantages, _, cleared = through_verl(token_rewards, mask.clone(), uid, options)
    assert cleared.any(-1).nonzero().flatten().tolist() == [1, 3]
    assert advantages[[1, 3], 0].tolist() == pytest.approx([1.6, -1.6])


def test_a_reward_on_a_tool_token_counts():
    token_rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 0]])
    advantages, _, _ = through_verl(token_rewards, mask, np.array(["a", "b"], dtype=object), {})
    torch.testing.assert_close(advantages[:, 0], torch.tensor([0.379885, -0.620115]), atol=1e-6, rtol=0)


def test_what_stands_at_padding_is_not_read():
    token_rewards, mask, uid = batch_of([1.0, 0.0, 0.0], list("abc"))
    clean, _, _ = through_verl(token_rewards.clone(), mask, uid, {})
    poisoned, _, _ = through_verl(torch.where(mask.bool(), token_rewards, math.nan), mask, uid, {})
    assert torch.equal(clean, poisoned)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_reward_is_refused(bad):
    token_rewards, mask, uid = batch_of([1.0, bad], list("ab"))
    with pytest.raises(ValueError, match="finite"):
        through_verl(token_rewards, mask, uid, {})


def test_an_unknown_option_is_refused():
    token_rewards, mask, uid = batch_of([1.0, 0.0], list("ab"))
    with pytest.raises(ConfigError, match="unknown key algorithm.sppo.etta"):
        through_verl(token_rewards, mask, uid, {"etta": 1.0})


def test_prompt_scope_needs_uids():
    token_rewards, mask, _ = batch_of([1.0, 0.0], list("ab"))
    with pytest.raises(ValueError, match="uid"):
        compute_sppo_advantage(token_rewards, mask, config={"sppo": {"scope": "prompt"}})
    advantages, _ = compute_sppo_advantage(token_rewards, mask)
    assert advantages[0, 0] > 0 > advantages[1, 0]
