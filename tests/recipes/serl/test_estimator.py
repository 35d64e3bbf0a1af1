"""The estimators as verl calls them."""

import numpy as np
import pytest
import torch

from recipes.serl.estimators import grpo_advantage, reinforce_pp_advantage, rloo_advantage
from recipes.serl.verl_plugin import (
    compute_serl_grpo,
    compute_serl_reinforce_pp,
    compute_serl_rloo,
)

MASK = torch.tensor([[1.0, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
SCORES = torch.tensor([1.0, 0.0, 1.0, 1.0])
INDEX = np.array(["a", "a", "b", "b"], dtype=object)
REWARDS = torch.tensor([[0.0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1]])


def test_reinforce_pp_reads_the_penalty_from_the_rewards():
    kl = torch.tensor([[0.1, -0.2, 0.3], [0.5, 0.1, 9.0], [0.2, 9.0, 9.0], [0.0, 0.1, 0.2]])
    for gamma in (1.0, 0.9):
        ours = compute_serl_reinforce_pp(REWARDS - 0.01 * kl * MASK, MASK, config={"gamma": gamma})
        expected = reinforce_pp_advantage(SCORES, kl, MASK, kl_coef=0.01, gamma=gamma)
        for found, wanted in zip(ours, expected, strict=True):
            assert torch.allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("estimate", [compute_serl_rloo, compute_serl_grpo])
def test_padding_rows_belong_to_no_group_and_get_nothing(estimate):
    plain = estimate(REWARDS, MASK, INDEX)
    padded = estimate(
        torch.cat([REWARDS, torch.zeros(2, 3)]),
        torch.cat([MASK, torch.zeros(2, 3)]),
        np.append(INDEX, ["pad0", "pad1"]),
    )
    for found, wanted in zip(padded, plain, strict=True):
        assert torch.equal(found[:4], wanted) and torch.equal(found[4:], torch.zeros(2, 3))


def test_group_estimators_equal_the_pure_functions():
    assert torch.equal(compute_serl_grpo(REWARDS, MASK, INDEX)[0], grpo_advantage(SCORES, INDEX, MASK)[0])
    rloo = rloo_advantage(SCORES, INDEX, None, MASK, kl_coef=0.0)[0]
    assert torch.equal(compute_serl_rloo(REWARDS, MASK, INDEX, config={"use_kl_in_reward": False})[0], rloo)


def test_rloo_refuses_rewards_that_contain_a_penalty():
    with pytest.raises(ValueError, match="use_kl_in_reward=false"):
        compute_serl_rloo(REWARDS, MASK, INDEX, config={"use_kl_in_reward": True})


def test_a_batch_of_padding_alone_is_zero():
    advantages, returns = compute_serl_grpo(torch.zeros(2, 3), torch.zeros(2, 3), np.array(["pad0", "pad1"]))
    assert not advantages.any() and not returns.any()
