"""The advantage estimators of the SeRL code, to the constant: Reinforce++, RLOO and GRPO.

All take the group's scalar scores and the per-token KL apart from each other, because RLOO subtracts its baseline from
the scores before the KL penalty joins them (SeRL code, `compute_advantages_and_returns`).
"""

from collections.abc import Hashable, Sequence

import torch

NAMES = ("serl_reinforce_pp", "serl_rloo", "serl_grpo")
"""What verl's registry calls them."""

GRPO_EPSILON = 1e-9
MIN_VARIANCE = 1e-8
SCORE_CLIP = 10.0


def reinforce_pp_advantage(
    scores: torch.Tensor, kl: torch.Tensor | None, response_mask: torch.Tensor, *, kl_coef: float, gamma: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reinforce++: advantages and returns, both (B, T).

    `scores` (B,) is the reward of each response, `kl` (B, T) the estimate log pi - log pi_ref of each token or `None`,
    `response_mask` (B, T) is 1 on trained tokens. The score lands on the last trained token, minus `kl_coef` times the
    KL at each token; the return is the (discounted) suffix sum; advantages are returns less their mean over all trained
    tokens, divided by their biased standard deviation, its square at least 1e-8.
    """
    returns = _returns(scores, kl, response_mask, kl_coef=kl_coef, gamma=gamma)
    return _normalise_over_tokens(returns, response_mask), returns


def rloo_advantage(
    scores: torch.Tensor,
    index: Sequence[Hashable],
    kl: torch.Tensor | None,
    response_mask: torch.Tensor,
    *,
    kl_coef: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """RLOO as the SeRL code has it: leave-one-out scores, then as Reinforce++ with gamma 1, normalisation included.

    `index` names the prompt of each response (B). Raises `ValueError` on a prompt with fewer than two responses.
    """
    groups, sizes = _groups(scores, index)
    wide = scores.double()
    sums = wide.new_zeros(len(sizes)).index_add_(0, groups, wide)
    others = (sums[groups] - wide) / (sizes[groups] - 1)
    returns = _returns((wide - others).to(scores.dtype), kl, response_mask, kl_coef=kl_coef, gamma=1.0)
    return _normalise_over_tokens(returns, response_mask), returns


def grpo_advantage(
    scores: torch.Tensor, index: Sequence[Hashable], response_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO: (score - group mean) / (group standard deviation + 1e-9) on every trained token.

    Returns advantages and returns, both (B, T). The standard deviation is unbiased; the KL penalty belongs to the loss
    here, not to the reward. Raises `ValueError` on a prompt with fewer than two responses.
    """
    groups, sizes = _groups(scores, index)
    # float32 rounds the mean of equal scores such as 0.1, and the small epsilon makes an advantage of near 1 of that
    wide = scores.double()
    mean = wide.new_zeros(len(sizes)).index_add_(0, groups, wide) / sizes
    centred = wide - mean[groups]
    variance = wide.new_zeros(len(sizes)).index_add_(0, groups, centred.square()) / (sizes - 1)
    normalised = centred / (variance.sqrt()[groups] + GRPO_EPSILON)
    returns = _returns(normalised.to(scores.dtype), None, response_mask, kl_coef=0.0, gamma=1.0)
    return returns.clone(), returns


def _groups(scores: torch.Tensor, index: Sequence[Hashable]) -> tuple[torch.Tensor, torch.Tensor]:
    """Group number of each response (B,), and the size of each group."""
    if len(index) != len(scores):
        raise ValueError(f"index names the prompts of {len(index)} responses, scores holds {len(scores)}")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(index))}
    groups = torch.tensor([numbers[name] for name in index], dtype=torch.long, device=scores.device)
    sizes = torch.bincount(groups, minlength=len(numbers)).double()
    small = [name for name, size in zip(numbers, sizes.tolist(), strict=True) if size < 2]
    if small:
        raise ValueError(f"a group needs at least two responses, prompt {small[0]!r} has one; drop it before")
    return groups, sizes


def _returns(
    scores: torch.Tensor, kl: torch.Tensor | None, response_mask: torch.Tensor, *, kl_coef: float, gamma: float
) -> torch.Tensor:
    """Suffix sums (B, T), zero outside `response_mask`, of score-on-the-last-trained-token minus KL."""
    if response_mask.dim() != 2 or scores.shape != response_mask.shape[:1]:
        raise ValueError(
            f"need scores (B,) and response_mask (B, T), got {tuple(scores.shape)}, {tuple(response_mask.shape)}"
        )
    mask = response_mask.to(scores.dtype)
    n_tokens = mask.size(1)
    last = n_tokens - 1 - mask.flip(1).argmax(dim=1, keepdim=True)
    rewards = torch.zeros_like(mask)
    rewards.scatter_(1, last, scores.clamp(-SCORE_CLIP, SCORE_CLIP).unsqueeze(1))
    if kl is not None and kl_coef > 0.0:
        rewards = rewards - kl_coef * kl
    rewards = torch.where(mask > 0, rewards, torch.zeros_like(rewards))
    returns = torch.empty_like(rewards)
    running = rewards.new_zeros(len(rewards))
    for t in reversed(range(n_tokens)):
        running = rewards[:, t] + gamma * running
        returns[:, t] = running
    return returns * mask


def _normalise_over_tokens(returns: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    mask = response_mask.to(returns.dtype)
    n_tokens = mask.sum()
    if n_tokens == 0:
        return torch.zeros_like(returns)
    mean = (returns * mask).sum() / n_tokens
    variance = ((returns - mean).square() * mask).sum() / n_tokens
    return (returns - mean) * variance.clamp(min=MIN_VARIANCE).rsqrt() * mask
