"""Comparison of two models on the same problems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from recipes.evaluation.intervals import Interval, bootstrap_mean

PERMUTATIONS = 100_000
_LARGEST_LATTICE = 500_000
_LARGEST_DENOMINATOR = 10_000
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Comparison:
    """Model B against model A on the problems both have.

    Attributes:
        difference: mean of (B - A) with its bootstrap interval.
        p_value: two-sided, of the hypothesis that the sign of each problem's difference is a coin flip.
        method: "exact sign-flip", which for one greedy response per problem is McNemar's exact test, or "Monte Carlo
            sign-flip".
        problems: how many problems both models have.
        wins, losses: problems on which B is better, and worse.
    """

    difference: Interval
    p_value: float
    method: str
    problems: int
    wins: int
    losses: int


def compare(a: Mapping[str, float], b: Mapping[str, float], *, level: float = 0.95, seed: int = 0) -> Comparison:
    """Paired comparison of two models' scores per problem, keyed by problem id.

    Raises:
        ValueError: the models were not scored on the same problems.
    """
    if a.keys() != b.keys():
        missing, extra = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
        raise ValueError(
            "a paired comparison needs the same problems for both models; "
            f"only in the first: {len(missing)} {missing[:3]}, only in the second: {len(extra)} {extra[:3]}"
        )
    differences = [b[problem] - a[problem] for problem in sorted(a)]
    p_value, method = sign_flip_p_value(differences, seed=seed)
    return Comparison(
        difference=bootstrap_mean(differences, level=level, seed=seed),
        p_value=p_value,
        method=method,
        problems=len(differences),
        wins=sum(difference > _TOLERANCE for difference in differences),
        losses=sum(difference < -_TOLERANCE for difference in differences),
    )


def sign_flip_p_value(
    differences: Sequence[float], *, permutations: int = PERMUTATIONS, seed: int = 0
) -> tuple[float, str]:
    """Two-sided p-value of the paired permutation test on the sum of differences, and how it was found.

    Exact when the differences are multiples of a common fraction, as shares of n responses are: the distribution of
        the sum over all 2^m sign patterns is a convolution. Otherwise Monte Carlo with (hits + 1) / (permutations +
        1).
    """
    values = np.asarray([value for value in differences if abs(value) > _TOLERANCE], dtype=np.float64)
    if values.size == 0:
        return 1.0, "exact sign-flip"
    steps = _on_lattice(values)
    if steps is not None:
        return _exact(steps), "exact sign-flip"
    generator = np.random.default_rng(seed)
    observed = abs(values.sum()) - _TOLERANCE
    hits, chunk = 0, max(1, 4_000_000 // values.size)
    for start in range(0, permutations, chunk):
        signs = generator.integers(0, 2, size=(min(chunk, permutations - start), values.size), dtype=np.int8) * 2 - 1
        hits += int((np.abs(signs @ values) >= observed).sum())
    return (hits + 1) / (permutations + 1), "Monte Carlo sign-flip"


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several tests, adjusted together (Holm 1979).

    Rejecting those below a level keeps the chance of any false rejection below it, whatever their dependence.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, reached = [0.0] * len(p_values), 0.0
    for rank, position in enumerate(order):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_values[position]))
        adjusted[position] = reached
    return adjusted


def _on_lattice(values: np.ndarray) -> list[int] | None:
    """The values as integer multiples of one fraction, or None when that takes too fine a lattice."""
    fractions = [Fraction(float(value)).limit_denominator(_LARGEST_DENOMINATOR) for value in values]
    if any(abs(float(fraction) - value) > _TOLERANCE for fraction, value in zip(fractions, values, strict=True)):
        return None
    scale = lcm(*(fraction.denominator for fraction in fractions))
    steps = [int(fraction * scale) for fraction in fractions]
    return steps if sum(map(abs, steps)) <= _LARGEST_LATTICE else None


def _exact(steps: list[int]) -> float:
    reach = sum(map(abs, steps))
    chance = np.zeros(2 * reach + 1)
    chance[reach] = 1.0
    for step in map(abs, steps):
        chance = (np.roll(chance, step) + np.roll(chance, -step)) / 2
    observed = abs(sum(steps))
    return float(min(1.0, chance[: reach - observed + 1].sum() + chance[reach + observed :].sum() if observed else 1.0))
