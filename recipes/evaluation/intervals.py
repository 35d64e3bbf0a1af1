"""Intervals: bootstrap over problems, Wilson for a proportion that is all that is known."""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
_CHUNK = 2_000_000


class Interval(NamedTuple):
    """A mean with the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


def bootstrap_mean(
    values: Sequence[float], *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Percentile bootstrap interval of the mean over problems.

    A problem is drawn with all its responses, so the interval covers both which problems were asked and what was
    sampled for them. The same seed and number of problems draw the same resamples, whatever the values.

    Args:
        values: one score per problem, such as its pass@k.
        level: share of the bootstrap distribution between the bounds, in (0, 1).

    Raises:
        ValueError: no values, or one that is not finite.
    """
    scores = np.asarray(values, dtype=np.float64)
    if scores.size == 0:
        raise ValueError("found no problems to average over; expected at least one")
    if not np.isfinite(scores).all():
        raise ValueError(f"found {int((~np.isfinite(scores)).sum())} scores that are not finite numbers")
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK // scores.size)
    means = np.concatenate(
        [
            scores[generator.integers(scores.size, size=(min(rows, resamples - start), scores.size))].mean(axis=1)
            for start in range(0, resamples, rows)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(scores.mean()), float(low), float(high))


def wilson(successes: float, trials: int, *, level: float = 0.95) -> Interval:
    """Interval of a proportion (Wilson 1927, score interval without continuity correction).

    Raises:
        ValueError: impossible counts.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"expected 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = successes / trials
    centre = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))
