"""Quality of a process reward model: step accuracy, calibration, best-of-n."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Aggregation = Literal["product", "minimum", "last", "mean"]


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability diagram: steps whose predicted probability lies in (low, high]."""

    low: float
    high: float
    steps: int
    predicted: float
    observed: float


def step_accuracy(probabilities: Sequence[float], labels: Sequence[bool], threshold: float = 0.5) -> float:
    """Share of steps whose predicted probability of being good lies on the label's side of the threshold (>= is good).

    Raises:
        ValueError: no steps, or lengths that differ.
    """
    predicted, observed = _checked(probabilities, labels)
    return float(((predicted >= threshold) == observed).mean())


def calibration(probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10) -> tuple[float, list[Bin]]:
    """Expected calibration error with equally wide bins, and the bins that hold steps.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", equation 3.

    Raises:
        ValueError: no steps, lengths that differ, or a probability outside [0, 1].
    """
    predicted, observed = _checked(probabilities, labels)
    if predicted.min() < 0 or predicted.max() > 1:
        raise ValueError(f"found probabilities from {predicted.min()} to {predicted.max()}; expected them in [0, 1]")
    edges = np.linspace(0.0, 1.0, bins + 1)
    which = np.clip(np.searchsorted(edges, predicted, side="left") - 1, 0, bins - 1)
    filled = [
        Bin(
            float(edges[index]),
            float(edges[index + 1]),
            int(members.sum()),
            float(predicted[members].mean()),
            float(observed[members].mean()),
        )
        for index in range(bins)
        if (members := which == index).any()
    ]
    error = sum(part.steps * abs(part.predicted - part.observed) for part in filled) / predicted.size
    return float(error), filled


def response_score(step_probabilities: Sequence[float], aggregation: Aggregation = "product") -> float:
    """One number for a response from the probabilities of its steps; a response without steps scores 0."""
    reductions = {"product": np.prod, "minimum": np.min, "last": lambda steps: steps[-1], "mean": np.mean}
    steps = np.asarray(step_probabilities, dtype=np.float64)
    return float(reductions[aggregation](steps)) if steps.size else 0.0


def best_of_n(scores: Sequence[float], correct: Sequence[bool], n: int) -> float:
    """Exact expectation of best-of-n: the best-scored of n responses, drawn without replacement, is right.

    Equal best scores share the choice evenly.

    Raises:
        ValueError: unless there are as many scores as responses and 1 <= n <= their number.
    """
    ranked, truth = _checked(scores, correct)
    if not 1 <= n <= ranked.size:
        raise ValueError(f"best-of-{n} needs at least {n} responses per problem and n >= 1, found {ranked.size}")
    total, below = 0.0, 0
    for value in np.unique(ranked):
        tied = ranked == value
        up_to = below + int(tied.sum())
        # The best of the draw has this value when the draw reaches it and nothing above it.
        total += (_ways(up_to, n, ranked.size) - _ways(below, n, ranked.size)) * float(truth[tied].mean())
        below = up_to
    return total


def _ways(size: int, n: int, out_of: int) -> float:
    """Probability that n draws without replacement all fall among `size` of `out_of`."""
    return float(np.prod([(size - drawn) / (out_of - drawn) for drawn in range(n)])) if size >= n else 0.0


def _checked(values: Sequence[float], labels: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    if len(values) != len(labels) or not len(values):
        raise ValueError(f"found {len(values)} values and {len(labels)} labels; expected as many of each, at least one")
    return np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=bool)
