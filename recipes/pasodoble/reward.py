"""The Proposer's reward: high for hard problems, 0 for unsolved and for repeated ones.

Source: PasoDoble, ``_score_completions`` in ``proposergrpo_trainer.py``.
"""

from typing import Any

import numpy as np
import torch


def proposer_reward(
    pass_rate: Any, diversity: Any, *, tau_low: float = 0.2, tau_div: float = 0.3, w: float = 0.2
) -> Any:
    r"""Compute the reward of a proposal with pass rate :math:`p` and diversity :math:`d`.

    .. math:: r = (1.1 - p) + w d \quad\text{if } p > \tau_{low} \text{ and } d > \tau_{div},\quad\text{else } 0

    Args:
        pass_rate: share of the Solver's responses that agree with the Proposer's answer, after the sanity check; in
            [0, 1]; a number, or an array or tensor of any shape.
        diversity: share of the history that the question is not similar to; in [0, 1]; same shape or broadcastable.

    Returns:
        The reward: a float for numbers, else an array or tensor of the broadcast shape.

    Raises:
        ValueError: if a pass rate or a diversity lies outside [0, 1] or is not a number.
    """
    if isinstance(pass_rate, torch.Tensor) or isinstance(diversity, torch.Tensor):
        p, d, where = torch.as_tensor(pass_rate), torch.as_tensor(diversity), torch.where
    else:
        p, d, where = np.asarray(pass_rate), np.asarray(diversity), np.where
    for name, value in (("pass_rate", p), ("diversity", d)):
        if not bool(((value >= 0) & (value <= 1)).all()):
            raise ValueError(f"{name} must lie in [0, 1], got {value.tolist()}")
    reward = where((p > tau_low) & (d > tau_div), (1.1 - p) + w * d, 0.0)
    return reward if isinstance(reward, torch.Tensor) or reward.ndim else float(reward)
