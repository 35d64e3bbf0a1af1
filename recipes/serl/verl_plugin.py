"""The estimators under verl's signature: `serl_reinforce_pp`, `serl_rloo` and `serl_grpo`.

verl hands an estimator token rewards in which a KL penalty is already contained. Reinforce++ does not mind, as its
return is a sum; GRPO's penalty belongs to the loss, and a launch refuses it in the reward; RLOO's baseline must not see
it, so the SeRL trainer computes RLOO from scores and KL apart, and the one here is for jobs without a penalty.
"""

from typing import Any

import numpy as np
import torch

from recipes.serl.estimators import grpo_advantage, reinforce_pp_advantage, rloo_advantage


def compute_serl_reinforce_pp(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reinforce++ from token rewards (B, T); advantages and returns (B, T). `config.gamma` discounts, 1 by default."""
    gamma = 1.0 if config is None else config.get("gamma", 1.0)
    scores = token_level_rewards.new_zeros(len(token_level_rewards))
    # The rewards enter as a negative penalty with coefficient 1: the same suffix sum.
    return reinforce_pp_advantage(scores, -token_level_rewards, response_mask, kl_coef=1.0, gamma=gamma)


def compute_serl_rloo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """RLOO from token rewards (B, T) without KL penalty; `index` (B,) names prompts.

    Raises `ValueError` when `config.use_kl_in_reward` is on: the baseline would contain the other responses' KL.
    """
    if config is not None and config.get("use_kl_in_reward", False):
        raise ValueError(
            "serl_rloo subtracts its baseline from the scores alone, which verl does not pass on with a KL penalty in "
            "the reward; run it under trainer.v1.trainer_mode=serl or set algorithm.use_kl_in_reward=false"
        )
    return _on_real_rows(
        lambda scores, prompts, mask: rloo_advantage(scores, prompts, None, mask, kl_coef=0.0),
        token_level_rewards,
        response_mask,
        index,
    )


def compute_serl_grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO from token rewards (B, T); `index` (B,) names prompts."""
    return _on_real_rows(grpo_advantage, token_level_rewards, response_mask, index)


def _on_real_rows(estimate, token_level_rewards, response_mask, index) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply an estimator to the rows with trained tokens; verl's padding rows have none and belong to no group."""
    rows = response_mask.bool().any(dim=1)
    advantages = torch.zeros_like(token_level_rewards)
    returns = torch.zeros_like(token_level_rewards)
    if rows.any():
        mask = response_mask[rows]
        scores = (token_level_rewards[rows] * mask).sum(dim=1)
        prompts = np.asarray(index, dtype=object)[rows.cpu().numpy()].tolist()
        advantages[rows], returns[rows] = estimate(scores, prompts, mask)
    return advantages, returns
