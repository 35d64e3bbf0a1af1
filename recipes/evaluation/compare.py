"""Compare evaluations on the same problems: one table of paired differences, and a gate for regressions.

    python -m recipes.evaluation.compare outputs/base outputs/step_100 outputs/step_200
    python -m recipes.evaluation.compare outputs/base outputs/new --metric pass@4 --fail-below -1

Each argument is the output_dir of an evaluation; the first run is the baseline. Scores are made anew from the graded
samples by the baseline's rules (k, denominator, majority), so the runs differ in nothing but their responses. A
difference is tested by a sign-flip test on problems; p-values of the whole table are adjusted together (Holm).
With --fail-below the exit code is 1 when a difference lies below so many percentage points with its whole interval.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

from recipes.core import files
from recipes.errors import DataError, LaunchError
from recipes.evaluation.grading import Grade
from recipes.evaluation.metrics import MetricOptions, per_problem
from recipes.evaluation.sample_store import read_graded
from recipes.evaluation.stats import (
    Comparison,
    Interval,
    compare,
    holm,
    macro_mean,
    macro_scores,
    read_macros,
    sign_flip_p_value,
)

Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class ComparedRun:
    """One model in one output folder.

    Attributes:
        graded: benchmark -> problem -> grades.
        truncated: benchmark -> share of responses that met the length limit.
        card: the folder's run card.
        sampling: benchmark -> sampling settings; those of the configuration where responses were only graded.
    """

    name: str
    graded: Mapping[str, Mapping[str, list[Grade]]]
    truncated: Mapping[str, float]
    card: Mapping[str, Any]
    sampling: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ComparisonRow:
    """One benchmark or macro average of one run against the baseline."""

    run: str
    benchmark: str
    baseline: float
    score: float
    difference: Interval
    p_value: float
    adjusted: float
    problems: int
    truncated: tuple[float | None, float | None]


def read_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """The runs of evaluations, in order; models of the same name are told apart by their folder.

    Raises:
        DataError: a folder that is no output of an evaluation.
    """
    runs = []
    for folder in folders:
        try:
            card = json.loads((folder / "run_card.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{folder} holds no run card of an evaluation: {error}") from error
        models: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for (model, benchmark), rows in read_graded(folder).items():
            models.setdefault(model, {})[benchmark] = rows
        for model, benchmarks in models.items():
            graded = {name: _grades(rows) for name, rows in benchmarks.items()}
            truncated = {
                name: sum(row["finish_reason"] == "length" for row in rows) / len(rows)
                for name, rows in benchmarks.items()
            }
            stated = card["models"].get(model, {}).get("sampling", {})
            sampling = {name: stated.get(name, card["config"]["sampling"]) for name in benchmarks}
            runs.append((folder, ComparedRun(model, graded, truncated, card, sampling)))
    names = [run.name for _, run in runs]
    return [
        replace(run, name=f"{folder.name}/{run.name}") if names.count(run.name) > 1 else run for folder, run in runs
    ]


def _grades(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Grade]]:
    known = [field.name for field in fields(Grade)]
    found: dict[str, list[Grade]] = {}
    for row in rows:
        found.setdefault(str(row["problem"]), []).append(Grade(**{name: row[name] for name in known}))
    return found


def metric_options(card: Mapping[str, Any]) -> MetricOptions:
    """The rules by which a run made its numbers."""
    config = card["config"]
    wanted = config["k"] if isinstance(config["k"], list) else [config["k"]]
    return MetricOptions(k=tuple(sorted(set(wanted))), level=config["level"], **config["metrics"])


def table(runs: Sequence[ComparedRun], metric: str | None = None) -> tuple[list[ComparisonRow], list[str]]:
    """Every run against the first on every shared benchmark and macro average, and notes on what differs.

    Args:
        metric: such as pass@4; the baseline's smallest pass@k when None.

    Raises:
        DataError: fewer than two runs, nothing shared, other data under the same name, or no such metric.
    """
    if len(runs) < 2:
        raise DataError(f"a comparison needs two runs, found {len(runs)}")
    baseline = runs[0]
    options = metric_options(baseline.card)
    metric = metric or f"pass@{options.k[0]}"
    first = _scores(baseline, options)
    unfinished = []
    for run in runs[1:]:
        second = _scores(run, options)
        shared = [name for name in first if name in second]
        if not shared:
            raise DataError(f"{run.name} and {baseline.name} share no benchmark")
        for name in shared:
            _same_data(name, baseline, run)
            if metric not in first[name]:
                raise DataError(f"{name} has no {metric}; it has {', '.join(first[name])}")
            unfinished.append(_benchmark_row(name, metric, baseline, run, first[name], second[name], options))
        unfinished += _macro_rows(metric, baseline, run, first, second, options)
    adjusted = holm([found["p_value"] for found in unfinished])
    rows = [ComparisonRow(**found, adjusted=value) for found, value in zip(unfinished, adjusted, strict=True)]
    return rows, _notes(runs, rows, metric)


def _scores(run: ComparedRun, options: MetricOptions) -> dict[str, Scores]:
    return {name: per_problem(graded, options)[0] for name, graded in run.graded.items()}


def _same_data(name: str, baseline: ComparedRun, run: ComparedRun) -> None:
    prints = [found.card["benchmarks"].get(name, {}).get("fingerprint") for found in (baseline, run)]
    if prints[0] != prints[1]:
        raise DataError(
            f"{name}: {baseline.name} and {run.name} were asked other problems (fingerprints {prints[0]} and "
            f"{prints[1]}); a paired comparison needs the same"
        )


def _shared(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    common = [problem for problem in first if problem in second]
    return {problem: first[problem] for problem in common}, {problem: second[problem] for problem in common}


def _benchmark_row(
    name: str,
    metric: str,
    baseline: ComparedRun,
    run: ComparedRun,
    first: Scores,
    second: Scores,
    options: MetricOptions,
) -> dict[str, Any]:
    ours, theirs = _shared(first[metric], second.get(metric, {}))
    if not ours:
        raise DataError(f"{name}: {run.name} has no {metric} on the problems of {baseline.name}")
    found: Comparison = compare(ours, theirs, level=options.level)
    return {
        "run": run.name,
        "benchmark": name,
        "baseline": sum(ours.values()) / len(ours),
        "score": sum(theirs.values()) / len(theirs),
        "difference": found.difference,
        "p_value": found.p_value,
        "problems": found.problems,
        "truncated": (baseline.truncated[name], run.truncated[name]),
    }


def _macro_rows(
    metric: str,
    baseline: ComparedRun,
    run: ComparedRun,
    first: Mapping[str, Scores],
    second: Mapping[str, Scores],
    options: MetricOptions,
) -> list[dict[str, Any]]:
    rows = []
    for name, macro in read_macros(baseline.card["config"].get("macro")).items():
        pairs = {
            benchmark: _shared(first[benchmark].get(metric, {}), second[benchmark].get(metric, {}))
            for part in macro
            for benchmark in part
            if benchmark in first and benchmark in second
        }
        sides = [
            {benchmark: {metric: pair[side]} for benchmark, pair in pairs.items() if pair[side]} for side in (0, 1)
        ]
        ours, theirs = (macro_scores(macro, metric, side) for side in sides)
        if ours is None or theirs is None:
            continue
        differences = [[b - a for a, b in zip(*part, strict=True)] for part in zip(ours, theirs, strict=True)]
        weighted = [value / len(part) / len(macro) for part in differences for value in part]
        rows.append(
            {
                "run": run.name,
                "benchmark": f"macro {name}",
                "baseline": macro_mean(ours).mean,
                "score": macro_mean(theirs).mean,
                "difference": macro_mean(differences, level=options.level),
                "p_value": sign_flip_p_value(weighted)[0],
                "problems": len(weighted),
                "truncated": (None, None),
            }
        )
    return rows


def _notes(runs: Sequence[ComparedRun], rows: Sequence[ComparisonRow], metric: str) -> list[str]:
    baseline = runs[0]
    level = 100 * metric_options(baseline.card).level
    notes = [
        f"{metric} in percent, {baseline.name} is the baseline; paired differences in percentage points with "
        f"{level:g} % bootstrap intervals over problems, each interval for itself. {len(rows)} comparisons: p by a "
        "two-sided sign-flip test, Holm's p is adjusted for all of them together. In brackets the share of responses "
        "cut off at the length limit."
    ]
    for run in runs[1:]:
        changed = _changed("prompt", baseline.card["config"]["prompt"], run.card["config"]["prompt"])
        for name in baseline.sampling.keys() & run.sampling.keys():
            changed |= _changed("sampling", baseline.sampling[name], run.sampling[name])
        if changed:
            notes.append(
                f"{run.name} was made with other settings: {', '.join(sorted(changed))}; the difference is not the "
                "models' alone."
            )
    dates = {
        name: found["source"]["published"]
        for name, found in baseline.card["benchmarks"].items()
        if found["source"].get("published")
    }
    if dates:
        listed = ", ".join(f"{name} {month}" for name, month in sorted(dates.items(), key=lambda item: item[1]))
        notes.append(
            "Contamination is not tested: problems published before a model's training data ends may be in it "
            f"({listed})."
        )
    return notes


def _changed(part: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> set[str]:
    return {
        f"{part}.{key} {theirs.get(key)} instead of {ours.get(key)}"
        for key in ours.keys() | theirs.keys()
        if ours.get(key) != theirs.get(key)
    }


def markdown(rows: Sequence[ComparisonRow], notes: Sequence[str]) -> str:
    """The table and its notes."""
    lines = [
        "| run | benchmark | baseline | score | difference [interval] | p | Holm's p | problems |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            f"{100 * value:.2f}" + ("" if cut is None else f" ({100 * cut:.1f} %)")
            for value, cut in zip((row.baseline, row.score), row.truncated, strict=True)
        ]
        found = row.difference
        lines.append(
            f"| {row.run} | {row.benchmark} | {cells[0]} | {cells[1]} | {100 * found.mean:+.2f} "
            f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}] | {row.p_value:.3g} | {row.adjusted:.3g} | "
            f"{row.problems} |"
        )
    return "\n".join(lines) + "\n\n" + "\n".join(f"- {note}" for note in notes) + "\n"


def regressions(rows: Sequence[ComparisonRow], points: float) -> list[ComparisonRow]:
    """The rows whose whole interval lies below `points` percentage points."""
    return [row for row in rows if 100 * row.difference.high < points]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code: 1 for a regression, 2 for runs that do not compare."""
    parser = argparse.ArgumentParser(prog="python -m recipes.evaluation.compare", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="output_dir of evaluations, the baseline first")
    parser.add_argument("--metric", help="such as pass@4 or maj@16 (default: the baseline's smallest pass@k)")
    parser.add_argument("--fail-below", type=float, metavar="POINTS", help="exit with 1 when a difference is below")
    parser.add_argument("--markdown", type=Path, help="file to write the table to; it is printed in any case")
    options = parser.parse_args(arguments)
    if options.fail_below is not None and not isfinite(options.fail_below):
        parser.error(f"--fail-below must be a number of points, not {options.fail_below}")
    try:
        rows, notes = table(read_runs(options.folders), options.metric)
        text = markdown(rows, notes)
        if options.markdown:
            files.write(options.markdown, text)
    except (LaunchError, KeyError, OSError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    print(text)
    worse = regressions(rows, options.fail_below) if options.fail_below is not None else []
    for row in worse:
        print(
            f"compare: {row.run} on {row.benchmark} is {100 * row.difference.mean:+.2f} points, at most "
            f"{100 * row.difference.high:+.2f}: below {options.fail_below:+g}",
            file=sys.stderr,
        )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
