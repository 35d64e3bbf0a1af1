"""The formula, with no import of verl, Ray or vLLM: it can be read beside a paper and tested with four numbers."""

from collections.abc import Sequence

import torch


def leave_one_out(rewards: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """Subtract from each response's reward the mean reward of the other responses to its prompt.

    Args:
        rewards: `(B,)`, one reward per response.
        prompts: `B` prompt ids; responses with the same id form a group.

    Returns:
        `(B,)`: ``rewards[i] - mean(rewards[j] for j of the same prompt, j != i)``; 0 for a group of one, which has
        nothing to be compared with.
    """
    names = {name: number for number, name in enumerate(dict.fromkeys(prompts))}
    group = torch.tensor([names[name] for name in prompts], device=rewards.device)
    same = (group[:, None] == group[None, :]).to(rewards.dtype)
    others = same - torch.eye(len(group), dtype=rewards.dtype, device=rewards.device)
    count = others.sum(dim=1)
    return torch.where(count > 0, rewards - others @ rewards / count.clamp(min=1), torch.zeros_like(rewards))
