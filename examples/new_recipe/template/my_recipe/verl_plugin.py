"""verl's advantage estimator `my_recipe`: token-level rewards in, one advantage per response out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from recipes.my_recipe.advantage import leave_one_out


def compute_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    config: Mapping[str, Any] | None = None,
    index: np.ndarray | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write each response's advantage on its trained tokens.

    Args:
        token_level_rewards: `(B, T)`; the reward of a response is the sum of its row.
        response_mask: `(B, T)`, non-zero on trained tokens.
        config: verl's `algorithm` block; not read here.
        index: `(B,)` uid of each response's prompt.

    Returns:
        `(advantages, returns)`, both `(B, T)`.

    Raises:
        ValueError: no uid of the prompts.
    """
    if index is None:
        raise ValueError("my_recipe compares the responses of a prompt and needs their uid, found none in the batch")
    advantages = leave_one_out(token_level_rewards.sum(dim=-1), [str(uid) for uid in index])
    advantages = advantages.unsqueeze(-1) * (response_mask != 0)
    return advantages, advantages.clone()
