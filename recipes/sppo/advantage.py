"""Compute win rates, soft baselines and regression targets of SPPO.

The method is Self-Play Preference Optimization (Wu et al. 2024, arXiv 2405.00675): the policy is regressed, in
log-ratio to the policy that generated the data, on `eta * (score - baseline)`. Everything here acts on one number per
response; the log-ratio and the loss are in `loss.py`.
"""

from collections.abc import Hashable, Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch

Index: TypeAlias = Sequence[Hashable] | np.ndarray | torch.Tensor
Scope: TypeAlias = Literal["batch", "prompt"]
Baseline: TypeAlias = Literal["softmean", "mean", "half"]
Preference: TypeAlias = Literal["binary", "bradley_terry"]


def softmean(scores: torch.Tensor, beta: float) -> torch.Tensor:
    """Compute (1/beta) log mean exp(beta * scores), the soft value that is the best baseline (SPPO paper, section 4.3).

    Args:
        scores: `(n,)`, n at least 1.
        beta: inverse temperature; 0 gives the arithmetic mean, +inf would give the maximum, -inf the minimum.

    Returns:
        0-dimensional tensor, float32 or wider.
    """
    scores = _as_scores(scores)
    wide = scores.double()
    if beta == 0:
        return wide.mean().to(scores.dtype)
    # the extreme that keeps every exponent at or below 0; expm1 and log1p keep the digits when beta is small
    extreme = wide.max() if beta > 0 else wide.min()
    value = extreme + torch.log1p(torch.expm1(beta * (wide - extreme)).mean()) / beta
    return value.to(scores.dtype)


def sppo_target(
    scores: torch.Tensor, index: Index, *, eta: float = 1.0, scope: Scope = "batch", baseline: Baseline = "softmean"
) -> torch.Tensor:
    """Compute the regression target `eta * (score - baseline)` of each response's summed log-ratio, in nats.

    With scores the win rates and `baseline="half"` it is the right-hand side of the SPPO paper's eq. 4.7; with
    `baseline="softmean"` it is section 4.3's, the normaliser sampled. Batch scope, soft baseline and raw rewards make
    verl's SPPO recipe.

    Args:
        scores: `(B,)` sequence reward or win rate of each response.
        index: `(B,)` prompt identity of each response, any hashable values; read when `scope` is "prompt".
        eta: step size in nats per unit of score.
        scope: "batch" takes one baseline over all rows, "prompt" one per prompt.
        baseline: "softmean" (at inverse temperature eta), "mean", or "half" (the constant 1/2).

    Returns:
        `(B,)`, float32 or wider, on the device of `scores`.

    Raises:
        ValueError: shapes that do not fit, non-finite scores, or a target beyond the range of the result's type.
    """
    scores = _as_scores(scores)
    wide = scores.double()
    value = torch.full_like(wide, 0.5)
    groups = _rows_of_groups(scores, index if scope == "prompt" else [None] * len(index))
    for rows in groups if baseline != "half" else ():
        value[rows] = softmean(wide[rows], eta if baseline == "softmean" else 0)
    target = (eta * (wide - value)).to(scores.dtype)
    if not torch.isfinite(target).all():
        raise ValueError(f"the target eta * (score - baseline) exceeds {scores.dtype}; lower eta, found {eta}")
    return target


def win_rates(scores: torch.Tensor, index: Index, *, kind: Preference = "binary", tau: float = 1.0) -> torch.Tensor:
    """Estimate the probability that a response beats one drawn from the same policy (SPPO paper, section 4).

    P_hat(y_i) = (1/K) sum_k P(y_i > y_k) over the K responses to the prompt, y_i itself among them at 1/2.

    Args:
        scores: `(B,)` score of each response.
        index: `(B,)` prompt identity of each response.
        kind: "binary" is 1, 1/2 or 0 for a greater, equal or smaller score; "bradley_terry" is
            sigmoid((s_i - s_k) / tau), as the original code does with a scalar preference model.
        tau: temperature of "bradley_terry", in units of score.

    Returns:
        `(B,)`, float32 or wider; a prompt with one response gets 1/2.

    Raises:
        ValueError: shapes that do not fit, or non-finite scores.
    """
    scores = _as_scores(scores)
    rates = torch.empty_like(scores)
    for rows in _rows_of_groups(scores, index):
        group = scores[rows].double()
        margin = group.unsqueeze(1) - group.unsqueeze(0)
        preference = torch.sigmoid(margin / tau) if kind == "bradley_terry" else (torch.sign(margin) + 1) / 2
        rates[rows] = preference.mean(dim=1).to(scores.dtype)
    return rates


def best_worst(scores: torch.Tensor, index: Index) -> torch.Tensor:
    """Select the best and the worst response of each prompt, as the original pipeline does.

    Args:
        scores: `(B,)` score or win rate of each response.
        index: `(B,)` prompt identity of each response.

    Returns:
        `(B,)` bool, two rows per prompt: the first that has the highest score and the first that has the lowest; one
        row where all scores of the prompt are equal.

    Raises:
        ValueError: shapes that do not fit, or non-finite scores.
    """
    scores = _as_scores(scores)
    selected = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    for rows in _rows_of_groups(scores, index):
        # numpy documents that the first of equal values is taken; torch leaves it open
        group = scores[rows].cpu().numpy()
        selected[rows[int(group.argmax())]] = True
        selected[rows[int(group.argmin())]] = True
    return selected


def _as_scores(scores: torch.Tensor) -> torch.Tensor:
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(f"scores must have shape (B,) with B at least 1, found {tuple(scores.shape)}")
    scores = scores.detach().to(torch.promote_types(scores.dtype, torch.float32))
    if not torch.isfinite(scores).all():
        rows = (~torch.isfinite(scores)).nonzero().flatten().tolist()
        raise ValueError(f"scores must be finite, found NaN or infinity in rows {rows[:8]}")
    return scores


def _rows_of_groups(scores: torch.Tensor, index: Index) -> list[torch.Tensor]:
    if len(index) != len(scores):
        raise ValueError(f"index must name the prompt of each of the {len(scores)} scores, found {len(index)} entries")
    names = index.tolist() if isinstance(index, torch.Tensor | np.ndarray) else index
    groups: dict[Hashable, list[int]] = {}
    for row, name in enumerate(names):
        groups.setdefault(name, []).append(row)
    return [torch.tensor(rows, device=scores.device) for rows in groups.values()]
