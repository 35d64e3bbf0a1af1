"""Statistics of an evaluation: pass@k, intervals over problems, paired comparisons, macro averages, what is counted."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, lcm, sqrt
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np

from recipes.errors import ConfigError


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


Rule = Literal["all", "parsable"]
# Reasons with which a grader says that a response holds no answer it could read.
UNPARSABLE = frozenset(
    {
        "no_answer",
        "no_finish",
        "missing",
        "not_text",
        "no_box",
        "unclosed_box",
        "empty_box",
        "no_phrase",
        "empty_phrase",
        "only_thinking",
        "empty",
        "unparsable",
        "too_long",
        "too_deep",
        "too_many_digits",
    }
)


@dataclass(frozen=True)
class Denominator:
    """What an accuracy was divided by.

    Attributes:
        rule: "all", every judged response counts and one without an answer is wrong; "parsable", a response without a
            readable answer is left out, as the published evaluation of SeRL does. The second favours models whose
            wrong responses hold no readable answer.
        counted: responses in the denominator.
        excluded: responses left out, by reason. Under "all", only those that no grader could judge (a faulty gold
            answer, an infrastructure fault).
    """

    rule: Rule
    counted: int
    excluded: dict[str, int]


def counts(status: str, reason: str, rule: Rule) -> bool:
    """Whether one graded response is in the denominator. `status` is "score" or "skip"."""
    return status == "score" and not (rule == "parsable" and reason.partition(":")[0] in UNPARSABLE)


def denominator(graded: Iterable[tuple[str, str]], rule: Rule) -> Denominator:
    """The denominator of graded responses, given as (status, reason)."""
    counted, excluded = 0, Counter()
    for status, reason in graded:
        if counts(status, reason, rule):
            counted += 1
        else:
            excluded[reason.partition(":")[0] or status] += 1
    return Denominator(rule, counted, dict(sorted(excluded.items())))


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


# Parts of equal weight; each part is one or several benchmarks whose problems are pooled.
Macro = tuple[tuple[str, ...], ...]
Scores = Mapping[str, Mapping[str, float]]


def read_macros(config: Mapping[str, Any] | None) -> dict[str, Macro]:
    """Macro averages by name, from lists of benchmarks and lists of lists.

    Raises:
        ConfigError: something else, or a benchmark named twice in one macro.
    """
    found = {}
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
        found[name] = macro
    return found


def macro_scores(macro: Macro, metric: str, scores: Mapping[str, Scores]) -> list[list[float]] | None:
    """Scores of the problems of each part, or None where a benchmark of the macro lacks the metric.

    Args:
        scores: benchmark -> metric -> problem -> score.
    """
    if not all(metric in scores.get(benchmark, {}) for part in macro for benchmark in part):
        return None
    return [[value for benchmark in part for value in scores[benchmark][metric].values()] for part in macro]


def macro_mean(parts: Sequence[Sequence[float]], *, level: float = 0.95, seed: int = 0) -> Interval:
    """Mean of the parts' means, with a percentile bootstrap interval: problems are drawn anew within each part.

    Raises:
        ValueError: no parts, or one without problems.
    """
    if not parts or not all(parts):
        raise ValueError("a macro average needs parts with at least one problem each")
    generator = np.random.default_rng(seed)
    means = np.zeros(RESAMPLES)
    for part in parts:
        values = np.asarray(part, dtype=np.float64)
        # Row by row in blocks, so that a large benchmark does not take resamples x problems of memory at once.
        rows = max(1, 2_000_000 // values.size)
        for start in range(0, RESAMPLES, rows):
            size = (min(rows, RESAMPLES - start), values.size)
            means[start : start + size[0]] += values[generator.integers(values.size, size=size)].mean(axis=1)
    low, high = np.quantile(means / len(parts), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(np.mean([np.mean(part) for part in parts])), float(low), float(high))


def macro_results(
    macros: Mapping[str, Macro], scores: Mapping[str, Scores], *, level: float = 0.95, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Every macro average of one model whose benchmarks were all evaluated; for the others, what is missing.

    Returns:
        macro -> {"parts", "metrics": metric -> interval} or {"parts", "missing": benchmarks}.
    """
    results: dict[str, dict[str, Any]] = {}
    for name, macro in macros.items():
        parts = [list(part) for part in macro]
        missing = [benchmark for part in macro for benchmark in part if benchmark not in scores]
        if missing:
            results[name] = {"parts": parts, "missing": missing}
            continue
        first = macro[0][0]
        found = {metric: macro_scores(macro, metric, scores) for metric in scores[first]}
        results[name] = {
            "parts": parts,
            "metrics": {
                metric: macro_mean(values, level=level, seed=seed)._asdict()
                for metric, values in found.items()
                if values
            },
        }
    return results
