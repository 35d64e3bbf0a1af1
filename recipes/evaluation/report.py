"""Learning curves of one or several runs, from verl's file logger, as a picture and a Markdown table.

    python -m recipes.evaluation.report sppo=outputs/a/metrics.jsonl grpo=outputs/b/metrics.jsonl --output curve.png

A run is LABEL=FILE, or FILE alone. The same label again is another seed of the same setting: seeds are drawn thin,
their mean thick. Files joined by commas are parts of one run (before and after a resume).

    python -m recipes.evaluation.report ours=A.jsonl ours=B.jsonl --by-seed --steps 0 10 20 --problems 500

has a row for each run instead of one for each label; accuracies over 500 problems come in percent with 95 % intervals.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from recipes.evaluation import learning_curves
from recipes.evaluation.learning_curves import LogError, Run

_PANEL_INCHES = (6.0, 4.0)
_MOST_COLUMNS = 3


def read_run(argument: str) -> Run:
    """A run from LABEL=FILE[,FILE...] or FILE[,FILE...]; without a label, the name of the folder the file is in.

    Raises:
        LogError: a file that cannot be read as a log.
    """
    label, separator, files = argument.partition("=")
    paths = [Path(part) for part in (files if separator else argument).split(",")]
    return Run(label if separator else paths[0].resolve().parent.name, learning_curves.read_curves(paths))


def draw(runs: Sequence[Run], metrics: Sequence[str], output: Path, title: str = "") -> None:
    """Write one panel per metric to an image file; its suffix decides the format."""
    from matplotlib.figure import Figure

    columns = min(len(metrics), _MOST_COLUMNS)
    rows = -(-len(metrics) // columns)
    figure = Figure(figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows), layout="constrained")
    labels = list(dict.fromkeys(run.label for run in runs))
    for position, metric in enumerate(metrics, 1):
        axes = figure.add_subplot(rows, columns, position)
        for label, seeds in learning_curves.by_label(runs, metric).items():
            colour = f"C{labels.index(label) % 10}"
            for curve in seeds if len(seeds) > 1 else []:
                axes.plot(list(curve), list(curve.values()), color=colour, linewidth=0.8, alpha=0.35)
            mean = learning_curves.mean_curve(seeds)
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
    small_logs: Path | None = None,
    table: Callable[[Sequence[Run], Sequence[str]], str] = learning_curves.table,
) -> str:
    """Draw the curves, write the table if asked, and return it.

    Args:
        metrics: which to show; the training reward and the main validation metrics when None.
        small_logs: folder for a small log of each run, with these metrics alone.
        table: makes the table of runs and metrics.

    Raises:
        LogError: no run has one of the metrics.
    """
    chosen = list(metrics) if metrics else learning_curves.default_metrics(runs)
    names = sorted({metric for run in runs for metric in run.curves})
    missing = [metric for metric in chosen if metric not in names]
    if missing or not chosen:
        problem = f"no run has {', '.join(missing)}" if missing else "the runs have no reward and no validation metric"
        raise LogError(f"{problem}; they have: {', '.join(names) or 'nothing'}")
    text = table(runs, chosen)
    draw(runs, chosen, output, title)
    if small_logs is not None:
        learning_curves.write_small_logs(runs, chosen, small_logs)
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
    parser.add_argument("--by-seed", action="store_true", help="a row for each run instead of one for each label")
    parser.add_argument("--steps", nargs="+", type=int, help="with --by-seed: these steps (default: all common ones)")
    parser.add_argument("--problems", type=int, help="with --by-seed: the metrics are accuracies over so many problems")
    parser.add_argument("--keep", type=Path, help="folder for small logs of the runs, with the metrics shown alone")
    options = parser.parse_args(arguments)
    if not options.by_seed and (options.steps or options.problems is not None):
        parser.error("--steps and --problems belong to --by-seed")
    if options.problems is not None and options.problems < 1:
        parser.error(f"--problems must be at least 1, not {options.problems}")
    table = learning_curves.table
    if options.by_seed:
        table = partial(learning_curves.table_of_seeds, steps=options.steps, problems=options.problems)
    try:
        runs = [read_run(argument) for argument in options.runs]
        print(write_report(runs, options.output, options.markdown, options.metrics, options.title, options.keep, table))
    except (OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
