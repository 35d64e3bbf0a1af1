"""How well a PRM's probabilities agree with the completions that were drawn."""

import torch
from torch import Tensor


def expected_value(probabilities: Tensor) -> Tensor:
    """Compute the expected share of successful completions: sum over i of i / K times P(i).

    Args:
        probabilities: (..., K + 1)

    Returns:
        (...) in [0, 1]
    """
    hits = torch.arange(probabilities.shape[-1], dtype=probabilities.dtype, device=probabilities.device)
    return (probabilities * hits).sum(dim=-1) / (probabilities.shape[-1] - 1)


def value_statistics(probabilities: Tensor, hits: Tensor) -> dict[str, float]:
    """Compute accuracy, cross-entropy, correlation and calibration of predicted values.

    Args:
        probabilities: (N, K + 1). hits: (N,), values 0..K.

    Returns:
        `accuracy` of the most probable class, `cross_entropy` in nats, `correlation` (Pearson) of the expected value
        with hits / K, `calibration_error` (expected calibration error over ten bins of the expected value), and
        `count`. The correlation is 0 when either side is constant.

    Raises:
        ValueError: nothing to compare.
    """
    if len(hits) == 0:
        raise ValueError("no labelled prefix to evaluate")
    observed = hits.to(probabilities.dtype) / (probabilities.shape[-1] - 1)
    expected = expected_value(probabilities)
    picked = probabilities.gather(-1, hits[:, None].long()).squeeze(-1)
    return {
        "accuracy": (probabilities.argmax(dim=-1) == hits).double().mean().item(),
        "cross_entropy": -picked.clamp_min(1e-12).log().mean().item(),
        "correlation": correlation(expected, observed),
        "calibration_error": calibration_error(expected, observed),
        "count": len(hits),
    }


def correlation(expected: Tensor, observed: Tensor) -> float:
    """Pearson's correlation of two (N,) tensors; 0 when either is constant."""
    # Rounding gives a constant other than 0 a variance, and two of them a correlation of 1 or -1.
    if len(expected) < 2 or any(bool((side == side[0]).all()) for side in (expected, observed)):
        return 0.0
    return torch.corrcoef(torch.stack([expected, observed]))[0, 1].nan_to_num(0.0).item()


def calibration_error(expected: Tensor, observed: Tensor, bins: int = 10) -> float:
    """Average the absolute difference of expected and observed values over bins, weighted by their sizes."""
    return sum(size * abs(e - o) for e, o, size in calibration_bins(expected, observed, bins)) / len(expected)


def calibration_bins(expected: Tensor, observed: Tensor, bins: int = 10) -> list[tuple[float, float, int]]:
    """Compute mean expected value, mean observed value and size of each non-empty bin."""
    index = (expected * bins).long().clamp(0, bins - 1)
    return [
        (expected[index == b].mean().item(), observed[index == b].mean().item(), int((index == b).sum()))
        for b in range(bins)
        if (index == b).any()
    ]
