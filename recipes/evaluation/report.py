"""Learning curves of one or several runs, from verl's file logger, as a picture and a Markdown table.

    python -m recipes.evaluation.report sppo=outputs/a/metrics.jsonl grpo=outputs/b/metrics.jsonl --output curve.png

A run is LABEL=FILE, or FILE alone. The same label again is another seed of the same setting: seeds are drawn thin,
their mean thick. Files joined by commas are parts of one run (before and after a resume).
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean

# Learning curves from verl's file logger: one JSON line {"step": int, "data": {metric: value}} per step.
# Metric -> step -> value.
Curves = dict[str, dict[int, float]]

REWARD_METRICS = ("critic/score/mean", "critic/rewards/mean")
VALIDATION_PREFIXES = ("val-core/", "val/")


class LogError(ValueError):
    """A log file cannot be read as verl's file logger writes it."""


@dataclass(frozen=True)
class Run:
    """One training run: runs with the same label are seeds of one setting."""

    label: str
    curves: Curves


def read_curves(paths: Iterable[Path]) -> Curves:
    """Read the logs of one run; where files overlap, as after a resume, the later file's value of a step counts.

    A last line cut short by a killed process is dropped. Values that are no finite number (verl logs strings and
    nulls as well) are left out.

    Raises:
        LogError: a file is missing, empty, or holds another format.
    """
    curves: Curves = {}
    for path in paths:
        for step, data in _lines(Path(path)):
            for metric, value in data.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
                    curves.setdefault(metric, {})[step] = float(value)
    return {metric: dict(sorted(points.items())) for metric, points in curves.items()}


def _lines(path: Path) -> list[tuple[int, dict]]:
    if not path.is_file():
        raise LogError(
            f"{path} is not a file; expected the jsonl that verl's file logger writes (trainer.logger=[file])"
        )
    lines = path.read_bytes().split(b"\n")
    steps = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            steps.append((int(entry["step"]), dict(entry["data"])))
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):
                continue
            raise LogError(
                f'{path}, line {number}: expected {{"step": int, "data": {{...}}}}, found {line[:80]!r}'
            ) from error
    if not steps:
        raise LogError(f"{path} holds no step yet")
    return steps


def default_metrics(runs: Sequence[Run]) -> list[str]:
    """The training reward and every main validation metric that some run has."""
    names = sorted({metric for run in runs for metric in run.curves})
    reward = [metric for metric in REWARD_METRICS if metric in names][:1]
    for prefix in VALIDATION_PREFIXES:
        if validation := [metric for metric in names if metric.startswith(prefix)]:
            return reward + validation
    return reward


def mean_curve(curves: Sequence[dict[int, float]]) -> dict[int, float]:
    """Mean over seeds at the steps that all of them have."""
    steps = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    return {step: fmean(curve[step] for curve in curves) for step in sorted(steps)}


def by_label(runs: Sequence[Run], metric: str) -> dict[str, list[dict[int, float]]]:
    """The curves of a metric per label, one per seed; labels without the metric are left out."""
    grouped: dict[str, list[dict[int, float]]] = {}
    for run in runs:
        if run.curves.get(metric):
            grouped.setdefault(run.label, []).append(run.curves[metric])
    return grouped


def table(runs: Sequence[Run], metrics: Sequence[str]) -> str:
    """First, last and best value of every metric and label, over the steps that all seeds of the label have.

    With several seeds the last value comes with its lowest and highest seed.
    """
    lines = [
        "| run | metric | seeds | first (step) | last (step) | change | best (step) |",
        "|---|---|---|---|---|---|---|",
    ]
    for metric in metrics:
        for label, curves in by_label(runs, metric).items():
            mean = mean_curve(curves)
            if not mean:
                continue
            first, last, best = min(mean), max(mean), max(mean, key=mean.__getitem__)
            ends = [curve[last] for curve in curves]
            spread = f" [{min(ends):.4g}, {max(ends):.4g}]" if len(curves) > 1 else ""
            lines.append(
                f"| {label} | {metric} | {len(curves)} | {mean[first]:.4g} ({first}) "
                f"| {mean[last]:.4g}{spread} ({last}) | {mean[last] - mean[first]:+.4g} | {mean[best]:.4g} ({best}) |"
            )
    return "\n".join(lines) + "\n"


_PANEL_INCHES = (6.0, 4.0)
_MOST_COLUMNS = 3


def read_run(argument: str) -> Run:
    """A run from LABEL=FILE[,FILE...] or FILE[,FILE...]; without a label, the name of the folder the file is in.

    Raises:
        LogError: a file that cannot be read as a log.
    """
    label, separator, files = argument.partition("=")
    paths = [Path(part) for part in (files if separator else argument).split(",")]
    return Run(label if separator else paths[0].resolve().parent.name, read_curves(paths))


def draw(runs: Sequence[Run], metrics: Sequence[str], output: Path, title: str = "") -> None:
    """Write one panel per metric to an image file; its suffix decides the format."""
    from matplotlib.figure import Figure

    columns = min(len(metrics), _MOST_COLUMNS)
    rows = -(-len(metrics) // columns)
    figure = Figure(figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows), layout="constrained")
    labels = list(dict.fromkeys(run.label for run in runs))
    for position, metric in enumerate(metrics, 1):
        axes = figure.add_subplot(rows, columns, position)
        for label, seeds in by_label(runs, metric).items():
            colour = f"C{labels.index(label) % 10}"
            for curve in seeds if len(seeds) > 1 else []:
                axes.plot(list(curve), list(curve.values()), color=colour, linewidth=0.8, alpha=0.35)
            mean = mean_curve(seeds)
            name = f"{label} (mean of {len(seeds)})" if len(seeds) > 1 else label
            marker = "o" if len(mean) < 40 else None
            axes.plot(
                list(mean), list(mean.values()), color=colour, linewidth=2, marker=marker, markersize=3, label=name
            )
        axes.set(xlabel="training step", title=metric)
        axes.grid(alpha=0.3)
        axes.legend()
    if title:
        figure.suptitle(title)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)


def write_report(
    runs: Sequence[Run],
    output: Path,
    markdown: Path | None = None,
    metrics: Sequence[str] | None = None,
    title: str = "",
) -> str:
    """Draw the curves, write the table if asked, and return it.

    Args:
        metrics: which to show; the training reward and the main validation metrics when None.

    Raises:
        LogError: no run has one of the metrics.
    """
    chosen = list(metrics) if metrics else default_metrics(runs)
    names = sorted({metric for run in runs for metric in run.curves})
    missing = [metric for metric in chosen if metric not in names]
    if missing or not chosen:
        problem = f"no run has {', '.join(missing)}" if missing else "the runs have no reward and no validation metric"
        raise LogError(f"{problem}; they have: {', '.join(names) or 'nothing'}")
    text = table(runs, chosen)
    draw(runs, chosen, output, title)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(text, encoding="utf-8")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.evaluation.report", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="[LABEL=]FILE[,FILE]", help="a run; the same label again is a seed")
    parser.add_argument("--output", type=Path, default=Path("curve.png"), help="picture to write (default: curve.png)")
    parser.add_argument("--markdown", type=Path, help="file to write the table to; it is printed in any case")
    parser.add_argument("--metrics", nargs="+", help="metrics to show (default: training reward and validation)")
    parser.add_argument("--title", default="")
    options = parser.parse_args(arguments)
    try:
        runs = [read_run(argument) for argument in options.runs]
        print(write_report(runs, options.output, options.markdown, options.metrics, options.title))
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
