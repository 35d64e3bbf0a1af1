"""Learning curves from verl's file logger: one JSON line {"step": int, "data": {metric: value}} per step."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean

from recipes.evaluation.stats import wilson

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


def table_of_seeds(
    runs: Sequence[Run], metrics: Sequence[str], *, steps: Sequence[int] | None = None, problems: int | None = None
) -> str:
    """One row per metric and run as a Markdown table: values at some steps, and the change from the first to the last.

    Args:
        steps: columns; those that every run with one of the metrics has when None.
        problems: the metrics are accuracies over this many problems: given in percent, the first and the last step
            with their 95 % Wilson intervals.

    Raises:
        LogError: no run has a metric, a run lacks one of the steps, or an accuracy lies outside [0, 1].
    """
    rows = [
        (label, number, metric, curve)
        for metric in metrics
        for label, seeds in by_label(runs, metric).items()
        for number, curve in enumerate(seeds, 1)
    ]
    columns = sorted(steps if steps else mean_curve([curve for *_, curve in rows]))
    if not columns:
        raise LogError(f"no step has {', '.join(metrics)} in all runs" if rows else f"no run has {', '.join(metrics)}")
    several = len(metrics) > 1
    head = ["run", "seed", *(["metric"] if several else []), *(f"step {step}" for step in columns), "change"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for label, number, metric, curve in rows:
        cells = [label, str(number), *([metric] if several else [])]
        for step in columns:
            if step not in curve:
                raise LogError(f"{label}, seed {number}, has no {metric} at step {step}; it has: {sorted(curve)}")
            if problems is not None and not 0 <= curve[step] <= 1:
                raise LogError(f"{label}, step {step}: expected an accuracy between 0 and 1, found {curve[step]}")
            cells.append(_cell(curve[step], problems, with_interval=step in (columns[0], columns[-1])))
        change = curve[columns[-1]] - curve[columns[0]]
        cells.append(f"{change:+.4g}" if problems is None else f"{100 * change:+.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: float, problems: int | None, *, with_interval: bool) -> str:
    if problems is None:
        return f"{value:.4g}"
    if not with_interval:
        return f"{100 * value:.1f}"
    _, low, high = wilson(value * problems, problems)
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def write_small_logs(runs: Sequence[Run], metrics: Sequence[str], folder: Path) -> list[Path]:
    """Write the metrics alone as LABEL-1.jsonl, LABEL-2.jsonl, ... in the file logger's own form; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds: dict[str, int] = {}
    paths = []
    for run in runs:
        seeds[run.label] = seeds.get(run.label, 0) + 1
        steps: dict[int, dict[str, float]] = {}
        for metric in metrics:
            for step, value in run.curves.get(metric, {}).items():
                steps.setdefault(step, {})[metric] = value
        records = [json.dumps({"step": step, "data": data}) + "\n" for step, data in sorted(steps.items())]
        paths.append(folder / f"{run.label.replace('/', '_')}-{seeds[run.label]}.jsonl")
        paths[-1].write_text("".join(records), encoding="utf-8")
    return paths
