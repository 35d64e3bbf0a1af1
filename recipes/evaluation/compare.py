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
from recipes.evaluation.grade import Grade, MetricOptions, per_problem
from recipes.evaluation.presentation import interval_text, markdown_table
from recipes.evaluation.sample_store import read_graded
from recipes.evaluation.stats import Interval, compare, holm, macro_mean, read_macros, sign_flip_p_value

Pairs = dict[str, tuple[float, float]]
"""Problem -> score of the baseline and of the run."""


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
    problems: int
    truncated: tuple[float | None, float | None]
    adjusted: float = 1.0


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
            truncated = {
                name: sum(row["finish_reason"] == "length" for row in rows) / len(rows)
                for name, rows in benchmarks.items()
            }
            sampled = card["models"].get(model, {}).get("sampling", {})
            sampling = {name: sampled.get(name, card["config"]["sampling"]) for name in benchmarks}
            graded = {name: _grades(rows) for name, rows in benchmarks.items()}
            runs.append((folder, ComparedRun(model, graded, truncated, card, sampling)))
    names = [run.name for _, run in runs]
    return [
        replace(run, name=f"{folder.name}/{run.name}") if names.count(run.name) > 1 else run for folder, run in runs
    ]


def _grades(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Grade]]:
    columns = [column.name for column in fields(Grade)]
    grades: dict[str, list[Grade]] = {}
    for row in rows:
        grades.setdefault(str(row["problem"]), []).append(Grade(**{name: row[name] for name in columns}))
    return grades


def metric_options(card: Mapping[str, Any]) -> MetricOptions:
    """The rules by which a run made its numbers."""
    config = card["config"]
    return MetricOptions(k=tuple(sorted(set(config["k"]))), level=config["level"], **config["metrics"])


def table(runs: Sequence[ComparedRun], metric: str | None = None) -> tuple[list[ComparisonRow], list[str]]:
    """Every run against the first on every shared benchmark and macro average, and notes on what differs.

    Args:
        metric: such as pass@4; the baseline's smallest pass@k when None.

    Raises:
        DataError: fewer than two runs, nothing shared, other data under the same name, or no such metric.
    """
    if len(runs) < 2:
        raise DataError(f"a comparison needs two runs, found {len(runs)}")
    baseline, options = runs[0], metric_options(runs[0].card)
    metric = metric or f"pass@{options.k[0]}"
    rows: list[ComparisonRow] = []
    for run in runs[1:]:
        pairs = {name: _pairs(name, metric, baseline, run, options) for name in baseline.graded if name in run.graded}
        if not pairs:
            raise DataError(f"{run.name} and {baseline.name} share no benchmark")
        for name, paired in pairs.items():
            ours, theirs = ({problem: pair[side] for problem, pair in paired.items()} for side in (0, 1))
            result = compare(ours, theirs, level=options.level)
            rows.append(
                ComparisonRow(
                    run=run.name,
                    benchmark=name,
                    baseline=sum(ours.values()) / len(ours),
                    score=sum(theirs.values()) / len(theirs),
                    difference=result.difference,
                    p_value=result.p_value,
                    problems=result.problems,
                    truncated=(baseline.truncated[name], run.truncated[name]),
                )
            )
        rows += _macro_rows(baseline, run, pairs, options)
    adjusted = holm([row.p_value for row in rows])
    rows = [replace(row, adjusted=value) for row, value in zip(rows, adjusted, strict=True)]
    return rows, _notes(runs, rows, metric)


def _pairs(name: str, metric: str, baseline: ComparedRun, run: ComparedRun, options: MetricOptions) -> Pairs:
    prints = [one.card["benchmarks"].get(name, {}).get("fingerprint") for one in (baseline, run)]
    if prints[0] != prints[1]:
        raise DataError(
            f"{name}: {baseline.name} and {run.name} were asked other problems (fingerprints {prints[0]} and "
            f"{prints[1]}); a paired comparison needs the same"
        )
    ours, theirs = (per_problem(one.graded[name], options)[0] for one in (baseline, run))
    if metric not in ours:
        raise DataError(f"{name} has no {metric}; it has {', '.join(ours)}")
    other = theirs.get(metric, {})
    pairs = {problem: (score, other[problem]) for problem, score in ours[metric].items() if problem in other}
    if not pairs:
        raise DataError(f"{name}: {run.name} has no {metric} on the problems of {baseline.name}")
    return pairs


def _macro_rows(
    baseline: ComparedRun, run: ComparedRun, pairs: Mapping[str, Pairs], options: MetricOptions
) -> list[ComparisonRow]:
    rows = []
    for name, macro in read_macros(baseline.card["config"].get("macro")).items():
        if not all(benchmark in pairs for part in macro for benchmark in part):
            continue
        parts = [[pair for benchmark in part for pair in pairs[benchmark].values()] for part in macro]
        differences = [[theirs - ours for ours, theirs in part] for part in parts]
        weighted = [value / len(part) / len(macro) for part in differences for value in part]
        rows.append(
            ComparisonRow(
                run=run.name,
                benchmark=f"macro {name}",
                baseline=macro_mean([[ours for ours, _ in part] for part in parts]).mean,
                score=macro_mean([[theirs for _, theirs in part] for part in parts]).mean,
                difference=macro_mean(differences, level=options.level, lowest=-1.0),
                p_value=sign_flip_p_value(weighted)[0],
                problems=len(weighted),
                truncated=(None, None),
            )
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
    sources = {name: card["source"] for name, card in baseline.card["benchmarks"].items()}
    dates = sorted((source["published"], name) for name, source in sources.items() if source.get("published"))
    if dates:
        notes.append(
            "Contamination is not tested: problems published before a model's training data ends may be in it "
            f"({', '.join(f'{name} {month}' for month, name in dates)})."
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
    header = ["run", "benchmark", "baseline", "score", "difference [interval]", "p", "Holm's p", "problems"]
    cells = [
        [
            row.run,
            row.benchmark,
            *(
                f"{100 * value:.2f}" + ("" if cut is None else f" ({100 * cut:.1f} %)")
                for value, cut in zip((row.baseline, row.score), row.truncated, strict=True)
            ),
            interval_text(row.difference._asdict(), "+"),
            f"{row.p_value:.3g}",
            f"{row.adjusted:.3g}",
            str(row.problems),
        ]
        for row in rows
    ]
    return "\n".join([*markdown_table(header, cells), "", *(f"- {note}" for note in notes)]) + "\n"


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
