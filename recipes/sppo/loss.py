"""Compute the SPPO loss: the squared distance of a response's summed log-ratio from its target.

Self-Play Preference Optimization (Wu et al. 2024, arXiv 2405.00675), eq. 4.7: log pi(y|x) is the sum over the tokens
of the response, so the square contains the cross-token terms; a per-token square is another method.
"""

import torch


def sequence_log_ratio(old_log_prob: torch.Tensor, log_prob: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Sum the log-ratio log pi_theta(y|x) - log pi_t(y|x) over each response, in nats.

    Args:
        old_log_prob: `(B, T)` token log-probs under the policy that generated the data; no gradient flows to it.
        log_prob: `(B, T)` token log-probs under the policy being trained.
        response_mask: `(B, T)`, non-zero on trained tokens; what stands elsewhere, NaN included, is never read.

    Returns:
        `(B,)` float64; 0 for a row without trained tokens.

    Raises:
        ValueError: shapes that differ or are not `(B, T)`.
    """
    if not (log_prob.ndim == 2 and old_log_prob.shape == log_prob.shape == response_mask.shape):
        raise ValueError(
            "old_log_prob, log_prob and response_mask must share one shape (B, T), found "
            f"{tuple(old_log_prob.shape)}, {tuple(log_prob.shape)}, {tuple(response_mask.shape)}"
        )
    wide = torch.promote_types(log_prob.dtype, torch.float32)
    difference = log_prob.to(wide) - old_log_prob.detach().to(wide)
    # a product with the mask would turn NaN at padding into NaN in the sum; thousands of tokens round in float32
    return torch.where(response_mask.bool(), difference, 0).sum(dim=-1, dtype=torch.float64)


def sppo_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    target: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    normalizer: float | torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum (log-ratio - target)^2 over responses and divide by `normalizer` (SPPO paper, eq. 4.7; no factor 1/2).

    Args:
        old_log_prob: `(B, T)` token log-probs under the policy that generated the data.
        log_prob: `(B, T)` token log-probs under the policy being trained.
        target: `(B,)` target of each response in nats, from `recipes.sppo.advantage.sppo_target`.
        response_mask: `(B, T)`, non-zero on trained tokens. A row without any is left out.
        normalizer: number of responses the loss is the mean of. Give the global one, divided by the data-parallel
            size, when B is a part of a larger batch; the gradient is then the same however the batch is split. None
            takes the rows of this batch that have trained tokens.

    Returns:
        0-dimensional tensor, float32 or wider; 0 with a zero gradient when no row has trained tokens.

    Raises:
        ValueError: shapes that do not fit, or a normalizer that is not positive.
    """
    log_ratio = sequence_log_ratio(old_log_prob, log_prob, response_mask)
    if target.shape != log_ratio.shape:
        raise ValueError(f"target must have shape ({len(log_ratio)},), found {tuple(target.shape)}")
    trained = response_mask.bool().any(dim=-1)
    # inside the square, so that a NaN target of a row that is left out reaches neither value nor gradient
    residual = torch.where(trained, log_ratio - target.detach().double(), 0)
    if normalizer is None:
        normalizer = trained.sum().clamp(min=1)
    elif normalizer <= 0:
        raise ValueError(f"normalizer must be greater than 0, found {normalizer}")
    return (residual.square().sum() / normalizer).to(torch.promote_types(log_prob.dtype, torch.float32))
