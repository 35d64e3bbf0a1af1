"""PURE's advantages (arXiv 2504.15275): leave-one-out baselines over softmin step rewards, without a critic.

`pure_token` is the estimator of the authors' main branch (openrlhf/trainer/ppo_utils/experience_maker.py), whose
baseline is a reward per token, so that one huge step earns nothing by its length. `pure_rloo` is the paper's, in the
authors' verl branch (verl/trainer/ppo/core_algos.py), with the outcome's own baseline and the generation limit as the
divisor, as the paper has them.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ESTIMATORS = ("pure_token", "pure_rloo")
EPSILON = 1e-8


@dataclass(frozen=True)
class Rollout:
    """One response, as the estimators see it.

    Attributes:
        prompt: identity of its prompt within the step; the other responses to it make the baseline.
        rewards: (T,) step rewards, on the last token of each step.
        step_ends: positions of these tokens, ascending.
        kl: (T,) KL penalty of each token, coefficient included; subtracted from the rewards.
        outcome: 1 right, 0 wrong, None where the prompt keeps no answer.
    """

    prompt: Hashable
    rewards: Tensor
    step_ends: Sequence[int]
    kl: Tensor
    outcome: float | None = None


def pure_token(rollouts: Sequence[Rollout], *, outcome_weight: float) -> list[Tensor]:
    """Advantages with a baseline per token, 0 at every step end, normalised over the other tokens.

    Returns:
        One (T,) tensor for each rollout; zeros where no other response to the prompt is left.
    """
    returns, counted = [], []
    for rollout, others in _with_others(rollouts):
        counts = torch.ones_like(rollout.rewards, dtype=torch.bool)
        counts[list(rollout.step_ends)] = False
        if not others:
            returns.append(torch.zeros_like(rollout.rewards))
            counted.append(torch.zeros_like(counts))
            continue
        total, length = sum(float(o.rewards.sum()) for o in others), sum(len(o.rewards) for o in others)
        rewards = rollout.rewards.clone()
        for before, end in zip([-1, *rollout.step_ends], rollout.step_ends, strict=False):
            rewards[end] -= total / length * (end - before - 1)
        rewards[-1] += outcome_weight * _outcome_advantage(rollout, others)
        returns.append(_suffix_sums(rewards - rollout.kl) * counts)
        counted.append(counts)
    return _normalised(returns, counted)


def pure_rloo(rollouts: Sequence[Rollout], *, outcome_weight: float, max_response_length: int) -> list[Tensor]:
    """Advantages over a leave-one-out mean return, whitened over the batch.

    Args:
        max_response_length: the generation limit N; the baseline is the other responses' summed return over (K - 1) N.

    Returns:
        One (T,) tensor for each rollout; zeros where no other response to the prompt is left.
    """
    advantages, counted = [], []
    for rollout, others in _with_others(rollouts):
        counted.append(torch.full_like(rollout.rewards, bool(others), dtype=torch.bool))
        if not others:
            advantages.append(torch.zeros_like(rollout.rewards))
            continue
        total = sum(float(_suffix_sums(other.rewards - other.kl).sum()) for other in others)
        baseline = total / (len(others) * max_response_length)
        outcome = outcome_weight * _outcome_advantage(rollout, others)
        advantages.append(_suffix_sums(rollout.rewards - rollout.kl) - baseline + outcome)
    return _normalised(advantages, counted)


def _with_others(rollouts: Sequence[Rollout]) -> list[tuple[Rollout, list[Rollout]]]:
    """Each rollout with the other responses to its prompt."""
    groups: dict[Hashable, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.prompt, []).append(rollout)
    return [(one, [other for other in groups[one.prompt] if other is not one]) for one in rollouts]


def _outcome_advantage(rollout: Rollout, others: Sequence[Rollout]) -> float:
    """The outcome less the mean of the others', 0 where the prompt keeps no answer."""
    found = [other.outcome for other in others if other.outcome is not None]
    if rollout.outcome is None or not found:
        return 0.0
    return rollout.outcome - sum(found) / len(found)


def _suffix_sums(rewards: Tensor) -> Tensor:
    return rewards.flip(0).cumsum(0).flip(0)


def _normalised(rows: Sequence[Tensor], counted: Sequence[Tensor]) -> list[Tensor]:
    """Shift and scale the counted tokens of all rows to mean 0 and variance 1; the others stay 0."""
    values = torch.cat([row[counts] for row, counts in zip(rows, counted, strict=True)])
    if values.numel() < 2:
        return [torch.zeros_like(row) for row in rows]
    scale = torch.rsqrt(values.var() + EPSILON)
    return [(row - values.mean()) * scale * counts for row, counts in zip(rows, counted, strict=True)]
