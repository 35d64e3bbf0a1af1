"""What verl supplies around a method: PPO's clipped surrogate, and updates over mini-batches."""

from collections.abc import Callable

import torch
from policy import log_probs_of
from torch import Tensor


def clipped_surrogate(old: Tensor, new: Tensor, advantages: Tensor, mask: Tensor, *, clip: float = 0.2) -> Tensor:
    """PPO's loss, the mean over response tokens of -min(ratio A, clipped ratio A); all arguments (B, T)."""
    ratio = torch.where(mask, new - old, 0.0).exp()
    gains = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -torch.where(mask, gains, 0.0).sum() / mask.sum()


def update(
    model,
    optimizer: torch.optim.Optimizer,
    prompts: Tensor,
    ids: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    parts: int,
    generator: torch.Generator,
) -> None:
    """One pass over all responses in `parts` mini-batches of random rows, gradients clipped at norm 1.

    `prompts` (B, P) and `ids` (B, T) are token ids; `loss` takes the rows (b,) of a mini-batch and their (b, T)
    log-probs.
    """
    for rows in torch.randperm(len(ids), generator=generator).tensor_split(parts):
        value = loss(rows, log_probs_of(model, prompts[rows], ids[rows]))
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
