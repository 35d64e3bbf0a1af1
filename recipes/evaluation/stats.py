"""Statistics of an evaluation: pass@k, maj@k, intervals over problems, paired comparisons, macro averages."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Any, Literal, NamedTuple

import numpy as np

from recipes.errors import ConfigError

RESAMPLES = 10_000
PERMUTATIONS = 100_000
# Rows of resampled problems held in memory at a time.
_BATCH = 500
Abstention = Literal["silent", "vote"]


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of pass@k from n responses of which c are right: 1 - C(n-c, k) / C(n, k).

    The probability that k of the n responses, drawn without replacement, hold a right one. Exact: integer binomials,
    one division.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= c <= n:
        raise ValueError(f"found c={c} right responses of n={n}; expected 0 <= c <= n")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} responses per problem and k >= 1, found n={n}; sample more")
    return 1.0 - comb(n - c, k) / comb(n, k)


def maj_at_k(
    classes: Sequence[Hashable | None], right: Hashable | None, k: int, abstention: Abstention = "silent"
) -> float:
    """Exact expectation of maj@k over every ordered choice of k of the n responses, without replacement.

    In a random order, which of several equally frequent classes was seen first is uniform; so the usual rule "ties to
    the first seen" gives each tied class the same probability, and the expectation needs no sampling. A choice in
    which no response has an answer is wrong. For k = n, ties alone leave anything to chance.

    Args:
        classes: equivalence class of each response's answer; None where it has no answer.
        right: the class that equals the gold answer; None when no response has it.
        k: number of responses that vote.
        abstention: "silent", a response without an answer takes a place and does not vote; "vote", having no answer
            is a class of its own, which can win and is wrong.

    Raises:
        ValueError: unless 1 <= k <= n.
    """
    n = len(classes)
    if not 1 <= k <= n:
        raise ValueError(f"maj@{k} needs at least {k} responses per problem and k >= 1, found n={n}; sample more")
    counts = Counter(classes)
    silent = 0 if abstention == "vote" else counts.pop(None, 0)
    if right is None or right not in counts:
        return 0.0
    ours = counts.pop(right)
    expectation = sum(
        comb(ours, votes) * _share_of_wins(tuple(counts.values()), silent, votes, k - votes)
        for votes in range(1, min(ours, k) + 1)
    )
    return float(expectation / comb(n, k))


def _share_of_wins(others: Sequence[int], silent: int, votes: int, places: int) -> Fraction:
    """Ways to fill `places` from the other classes and the silent so that none has more than `votes`.

    A way in which j others have exactly `votes` counts 1 / (j + 1): our part of the tie.
    """
    ways = {(filled, 0): comb(silent, filled) for filled in range(min(silent, places) + 1)}
    for size in others:
        extended: Counter[tuple[int, int]] = Counter()
        for (filled, ties), count in ways.items():
            for taken in range(min(size, votes, places - filled) + 1):
                extended[filled + taken, ties + (taken == votes)] += count * comb(size, taken)
        ways = extended
    return sum((Fraction(count, ties + 1) for (filled, ties), count in ways.items() if filled == places), Fraction(0))


def majority_of_first(classes: Sequence[Hashable | None], k: int, abstention: Abstention = "silent") -> Hashable | None:
    """The most frequent class of the first k responses in the order they were sampled, ties to the first seen.

    One draw instead of the expectation: the rule of published scripts. None when no response has an answer, or, with
    `abstention="vote"`, when having no answer won.

    Raises:
        ValueError: unless 1 <= k <= n.
    """
    if not 1 <= k <= len(classes):
        raise ValueError(f"maj@{k} needs at least {k} responses per problem and k >= 1, found n={len(classes)}")
    voters = [name for name in classes[:k] if name is not None or abstention == "vote"]
    return Counter(voters).most_common(1)[0][0] if voters else None


class Interval(NamedTuple):
    """A mean with the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


def wilson(successes: float, trials: int, *, level: float = 0.95) -> Interval:
    """Interval of a proportion (Wilson 1927), of the nearest whole number of successes.

    Raises:
        ValueError: impossible counts.
    """
    from scipy.stats import binomtest

    found = binomtest(round(successes), trials).proportion_ci(level, "wilson")
    return Interval(successes / trials, float(found.low), float(found.high))


def bootstrap_mean(
    values: Sequence[float],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
    lowest: float = 0.0,
) -> Interval:
    """Percentile bootstrap interval of the mean over problems.

    A problem is drawn with all its responses, so the interval covers both which problems were asked and what was
    sampled for them. The same seed and number of problems draw the same resamples, whatever the values. Where all
    values are equal, every resample is too: then the interval reaches as far as Wilson's of 0 in so many trials.

    Args:
        values: one score per problem, such as its pass@k.
        level: share of the bootstrap distribution between the bounds, in (0, 1).
        lowest: what a score can be at least, 0, or -1 for differences; at most it is 1.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    return macro_mean([values], level=level, resamples=resamples, seed=seed, lowest=lowest)


def macro_mean(
    parts: Sequence[Sequence[float]],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
    lowest: float = 0.0,
) -> Interval:
    """Mean of the parts' means, with an interval as :func:`bootstrap_mean`: problems are drawn within each part.

    Raises:
        ValueError: no parts, one without problems, or a score that is not finite.
    """
    arrays = [np.asarray(part, dtype=np.float64) for part in parts]
    if not arrays or not all(array.size for array in arrays):
        raise ValueError("found a part without problems to average over; expected at least one in each")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("found scores that are not finite numbers")
    mean = float(np.mean([array.mean() for array in arrays]))
    if all(np.ptp(array) == 0 for array in arrays):
        reach = float(np.mean([wilson(0, array.size, level=level).high for array in arrays]))
        return Interval(mean, max(lowest, mean - reach), min(1.0, mean + reach))
    generator, means = np.random.default_rng(seed), np.zeros(resamples)
    for array in arrays:
        # In blocks, so that a large benchmark does not take resamples x problems of memory at once.
        for start in range(0, resamples, _BATCH):
            size = (min(_BATCH, resamples - start), array.size)
            means[start : start + size[0]] += array[generator.integers(array.size, size=size)].mean(axis=1)
    low, high = np.quantile(means / len(arrays), [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high))


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
        difference=bootstrap_mean(differences, level=level, seed=seed, lowest=-1.0),
        p_value=p_value,
        method=method,
        problems=len(differences),
        wins=sum(difference > 1e-9 for difference in differences),
        losses=sum(difference < -1e-9 for difference in differences),
    )


def sign_flip_p_value(
    differences: Sequence[float], *, permutations: int = PERMUTATIONS, seed: int = 0
) -> tuple[float, str]:
    """Two-sided p-value of the paired permutation test on the sum of differences, and how it was found.

    Exact when all differences are of one size, as those of one response per problem are, or when there are few of them;
    otherwise Monte Carlo with (hits + 1) / (permutations + 1).
    """
    from scipy.stats import binomtest, permutation_test

    values = np.asarray([value for value in differences if abs(value) > 1e-9], dtype=np.float64)
    if values.size == 0:
        return 1.0, "exact sign-flip"
    if np.ptp(np.abs(values)) < 1e-9:
        return float(binomtest(int((values > 0).sum()), values.size).pvalue), "exact sign-flip"
    test = permutation_test(
        (values,),
        # Sixths that cancel leave 1e-17, which would tie with nothing.
        lambda sample, axis: np.abs(sample.sum(axis=axis)).round(9),
        permutation_type="samples",
        vectorized=True,
        n_resamples=permutations,
        batch=_BATCH,
        alternative="greater",
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue), "exact sign-flip" if 2**values.size <= permutations else "Monte Carlo sign-flip"


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


# Parts of equal weight; each part is one or several benchmarks whose problems are pooled.
Macro = tuple[tuple[str, ...], ...]
# Metric -> problem -> score.
Scores = Mapping[str, Mapping[str, float]]


def read_macros(config: Mapping[str, Any] | None) -> dict[str, Macro]:
    """Macro averages by name, from lists of benchmarks and lists of lists.

    Raises:
        ConfigError: something else, or a benchmark named twice in one macro.
    """
    macros = {}
    for name, parts in (config or {}).items():
        listed = isinstance(parts, list) and parts
        if not listed or not all(isinstance(part, str) or (isinstance(part, list) and part) for part in parts):
            raise ConfigError(
                f"macro.{name}: expected a list of benchmarks or of lists of them, found {parts!r}", f"macro.{name}"
            )
        macro = tuple((part,) if isinstance(part, str) else tuple(map(str, part)) for part in parts)
        named = [benchmark for part in macro for benchmark in part]
        if len(set(named)) != len(named):
            raise ConfigError(f"macro.{name} names a benchmark twice: {named}", f"macro.{name}")
        macros[name] = macro
    return macros


def macro_scores(macro: Macro, metric: str, scores: Mapping[str, Scores]) -> list[list[float]] | None:
    """Scores of the problems of each part, or None where a benchmark of the macro lacks the metric."""
    if not all(metric in scores.get(benchmark, {}) for part in macro for benchmark in part):
        return None
    return [[value for benchmark in part for value in scores[benchmark][metric].values()] for part in macro]


def macro_results(
    macros: Mapping[str, Macro], scores: Mapping[str, Scores], *, level: float = 0.95, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Every macro average of one model whose benchmarks were all evaluated; for the others, what is missing.

    Returns:
        macro -> {"parts", "metrics": metric -> interval} or {"parts", "missing": benchmarks}.
    """
    results: dict[str, dict[str, Any]] = {}
    for name, macro in macros.items():
        results[name] = {"parts": [list(part) for part in macro]}
        missing = [benchmark for part in macro for benchmark in part if benchmark not in scores]
        if missing:
            results[name]["missing"] = missing
            continue
        pooled = {metric: macro_scores(macro, metric, scores) for metric in scores[macro[0][0]]}
        results[name]["metrics"] = {
            metric: macro_mean(parts, level=level, seed=seed)._asdict() for metric, parts in pooled.items() if parts
        }
    return results
