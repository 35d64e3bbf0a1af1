"""Generalised advantage estimation without whitening.

The LPR code (lora_share_trainer/ppo_engine.py) uses raw advantages; verl's own estimator always whitens them.
Whitening is a flag here.
"""

import torch
from torch import Tensor


def gae(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    whiten: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute advantages and returns per token.

    delta_t = r_t + gamma * V_{t+1} - V_t and A_t = delta_t + gamma * lam * A_{t+1} over the unmasked tokens of a
    row; masked tokens are passed over (the next value is that of the next unmasked token) and the value after the
    last one is 0.

    Args:
        token_level_rewards: (B, T) reward of each token; verl has subtracted its KL penalty (`use_kl_in_reward`).
        values: (B, T) critic's value of the state in which each token was chosen.
        response_mask: (B, T), 1 for tokens that count.
        gamma: discount in [0, 1].
        lam: trace decay in [0, 1].
        whiten: shift and scale the advantages to mean 0 and standard deviation 1 over all unmasked tokens.

    Returns:
        advantages (B, T), 0 where masked, and returns (B, T) = raw advantages + values, 0 where masked.

    Raises:
        ValueError: differing shapes, or whitening fewer than two tokens.
    """
    if not token_level_rewards.shape == values.shape == response_mask.shape:
        raise ValueError(
            f"shapes must agree: rewards {tuple(token_level_rewards.shape)}, values {tuple(values.shape)}, "
            f"mask {tuple(response_mask.shape)}"
        )
    mask = response_mask.to(values.dtype)
    advantages = torch.zeros_like(values)
    next_value = torch.zeros_like(values[:, 0])
    trace = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        counts = mask[:, t]
        delta = token_level_rewards[:, t] + gamma * next_value - values[:, t]
        trace = torch.where(counts > 0, delta + gamma * lam * trace, trace)
        next_value = torch.where(counts > 0, values[:, t], next_value)
        advantages[:, t] = trace
    advantages = advantages * mask
    # a product with the mask would keep NaN, and masked tokens may hold anything
    returns = torch.where(mask > 0, advantages + values, 0)
    if whiten:
        advantages = _whitened(advantages, mask)
    return advantages, returns


def _whitened(advantages: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum()
    if count < 2:
        raise ValueError("whitening needs at least two unmasked tokens")
    mean = (advantages * mask).sum() / count
    variance = ((advantages - mean).square() * mask).sum() / (count - 1)
    return (advantages - mean) * torch.rsqrt(variance + 1e-8) * mask
