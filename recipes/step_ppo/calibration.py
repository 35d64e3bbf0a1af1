"""How well a PRM's probabilities agree with the completions that were drawn."""

import torch
from torch import Tensor


def expected_value(probabilities: Tensor) -> Tensor:
    """Expected share of successful completions: sum over i of i / K times P(i).

    Args:
        probabilities: (..., K + 1)

    Returns:
        (...) in [0, 1]
    """
    hits = torch.arange(probabilities.shape[-1], dtype=probabilities.dtype, device=probabilities.device)
    return (probabilities * hits).sum(dim=-1) / (probabilities.shape[-1] - 1)


def value_statistics(probabilities: Tensor, hits: Tensor) -> dict[str, float]:
    """Accuracy, cross-entropy, correlation and calibration of predicted values.

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
    both = torch.stack([expected, observed]) - torch.stack([expected.mean(), observed.mean()])[:, None]
    scale = both.square().sum(dim=1).prod().sqrt()
    picked = probabilities.gather(-1, hits[:, None].long()).squeeze(-1)
    return {
        "accuracy": (probabilities.argmax(dim=-1) == hits).double().mean().item(),
        "cross_entropy": -picked.clamp_min(1e-12).log().mean().item(),
        "correlation": (both.prod(dim=0).sum() / scale).item() if scale > 0 else 0.0,
        "calibration_error": calibration_error(expected, observed),
        "count": len(hits),
    }


def calibration_error(expected: Tensor, observed: Tensor, bins: int = 10) -> float:
    """Mean absolute difference between expected and observed values, bin by bin, weighted by the bins' sizes."""
    return sum(size * abs(e - o) for e, o, size in calibration_bins(expected, observed, bins)) / len(expected)


def calibration_bins(expected: Tensor, observed: Tensor, bins: int = 10) -> list[tuple[float, float, int]]:
    """Mean expected value, mean observed value and size of each non-empty bin, for a calibration plot."""
    index = (expected * bins).long().clamp(0, bins - 1)
    return [
        (expected[index == b].mean().item(), observed[index == b].mean().item(), int((index == b).sum()))
        for b in range(bins)
        if (index == b).any()
    ]
