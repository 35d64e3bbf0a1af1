"""Learning curves of one or several runs, from verl's file logger, as a picture and a Markdown table.

    python -m recipes.evaluation.report sppo=outputs/a/metrics.jsonl grpo=outputs/b/metrics.jsonl --output curve.png

A run is LABEL=FILE, or FILE alone. The same label again is another seed of the same setting: seeds are drawn thin,
their mean thick. Files joined by commas are parts of one run (before and after a resume). A file whose lines name a
``run``, a ``seed`` and a ``step`` is the log of a whole experiment, as those in the recipes' ``results``.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

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
            _add(curves, step, data)
    return {metric: dict(sorted(points.items())) for metric, points in curves.items()}


def _add(curves: Curves, step: int, data: Mapping[str, Any]) -> None:
    for metric, value in data.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
            curves.setdefault(metric, {})[step] = float(value)


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
# A picture has no ground of its own: this grey and these colours (Okabe and Ito's, the light ones darkened) stand out
# from a white page and from a dark one. The colour-blind tell lines apart by their markers as well.
_INK = "#7D7D7D"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B07A00", _INK)
_MARKERS = "os^vDP"
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
_WORDS = {"critic/score/mean": "mean reward of the responses trained on", "val-core": "held-out", "val": "held-out"}


@contextmanager
def picture(
    output: Path, panels: int = 1, title: str = "", inches: tuple[float, float] = _PANEL_INCHES
) -> Iterator[list[Any]]:
    """Give the axes of an image file, for white and for dark pages, and write it; its suffix decides the format."""
    from cycler import cycler
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(panels, _MOST_COLUMNS)
    rows = -(-panels // columns)
    style = dict.fromkeys(_INKED, _INK) | {"axes.grid": True, "grid.alpha": 0.3, "legend.frameon": False}
    with rc_context(style | {"axes.prop_cycle": cycler(color=_COLOURS, marker=list(_MARKERS))}):
        figure = Figure(figsize=(inches[0] * columns, inches[1] * rows), layout="constrained")
        yield [figure.add_subplot(rows, columns, position) for position in range(1, panels + 1)]
        if title:
            figure.suptitle(title)
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=150, transparent=True)


def in_words(metric: str) -> str:
    """A title for a metric of verl's: "held-out accuracy, gsm8k, mean@4" for ``val-core/gsm8k/acc/mean@4``."""
    start, *rest = metric.split("/")
    if start in _WORDS and len(rest) == 3:
        return f"{_WORDS[start]} {rest[1].replace('acc', 'accuracy')}, {rest[0]}, {rest[2]}"
    return _WORDS.get(metric, metric)


def read_run(argument: str) -> Run:
    """A run from LABEL=FILE[,FILE...] or FILE[,FILE...]; without a label, the name of the folder the file is in.

    Raises:
        LogError: a file that cannot be read as a log.
    """
    label, separator, files = argument.partition("=")
    paths = [Path(part) for part in (files if separator else argument).split(",")]
    return Run(label if separator else paths[0].resolve().parent.name, read_curves(paths))


def read_runs(argument: str) -> list[Run]:
    """The runs of an experiment's log, or the one of :func:`read_run`.

    Raises:
        LogError: a file that cannot be read as a log.
    """
    path, runs = Path(argument), defaultdict[tuple[str, int], Curves](dict)
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    if not any('"run": ' in line for line in lines[:2]):
        return [read_run(argument)]
    try:
        for row in filter(lambda row: "run" in row, map(json.loads, lines)):
            _add(runs[row.pop("run"), row.pop("seed")], row.pop("step"), row)
    except (ValueError, TypeError, KeyError) as error:
        raise LogError(f"{path} is no log of an experiment: {type(error).__name__}: {error}") from error
    return [Run(label, curves) for (label, _), curves in runs.items()]


def draw(runs: Sequence[Run], metrics: Sequence[str], output: Path, title: str = "") -> None:
    """Write one panel per metric to an image file; a dotted line is the first run's held-out metric at step 0."""
    labels = list(dict.fromkeys(run.label for run in runs))
    with picture(output, len(metrics), title) as panels:
        for axes, metric in zip(panels, metrics, strict=True):
            means = []
            for label, seeds in by_label(runs, metric).items():
                number = labels.index(label) % len(_COLOURS)
                for curve in seeds if len(seeds) > 1 else []:
                    axes.plot(list(curve), list(curve.values()), f"C{number}", marker="", linewidth=0.8, alpha=0.5)
                mean = mean_curve(seeds)
                means += [mean] if mean else []
                name = f"{label} (mean of {len(seeds)})" if len(seeds) > 1 else label
                marker = _MARKERS[number] if len(mean) < 40 else ""
                axes.plot(list(mean), list(mean.values()), f"C{number}", marker=marker, linewidth=2, label=name)
            if means and 0 in means[0] and metric.startswith(VALIDATION_PREFIXES):
                axes.axhline(means[0][0], color=_INK, marker="", linestyle=":", label="start")
            axes.set(xlabel="training step", ylabel=metric, title=in_words(metric))
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.legend()


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
        runs = [run for argument in options.runs for run in read_runs(argument)]
        print(write_report(runs, options.output, options.markdown, options.metrics, options.title))
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
