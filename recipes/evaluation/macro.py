"""Macro averages: the mean over benchmarks, each with the same weight whatever its number of problems."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recipes.errors import ConfigError
from recipes.evaluation.intervals import RESAMPLES, Interval

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
