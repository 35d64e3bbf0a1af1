"""Say what a run did and draw its curve: `python examples/quickstart_report.py metrics.jsonl --curve curve.png`."""

import argparse
import json
import re
import sys
from pathlib import Path

from recipes.evaluation import report
from recipes.evaluation.report import LogError
from recipes.evaluation.stats import wilson

HELD_OUT = 500
REWARD = "critic/score/mean"
VALIDATION = re.compile(r"val-(?:core|aux)/[^/]+/(acc|reward|score)/mean@(\d+)")
BY_PREFERENCE = ("acc", "reward", "score")


def validation_accuracy(data: dict) -> float | None:
    """Validation accuracy in one step's metrics (mean over data sources), or None if the step has no validation."""
    values = [value for _, value in _validation_values(data)]
    return sum(values) / len(values) if values else None


def samples_per_problem(data: dict) -> int:
    """How many responses to a problem the validation in one step's metrics averages over; 1 without a validation."""
    return max((samples for samples, _ in _validation_values(data)), default=1)


def _validation_values(data: dict) -> list[tuple[int, float]]:
    """Responses per problem and mean of each data source, by the first of `BY_PREFERENCE` that was logged."""
    found: dict[str, list[tuple[int, float]]] = {}
    for key, value in data.items():
        if match := VALIDATION.fullmatch(key):
            found.setdefault(match[1], []).append((int(match[2]), float(value)))
    return next((found[name] for name in BY_PREFERENCE if name in found), [])


def validations(curves: report.Curves) -> list[tuple[int, float]]:
    """(step, accuracy) of every validation, in order of steps."""
    steps = sorted({step for curve in curves.values() for step in curve})
    found = [
        (step, validation_accuracy({metric: curve[step] for metric, curve in curves.items() if step in curve}))
        for step in steps
    ]
    return [(step, accuracy) for step, accuracy in found if accuracy is not None]


def summary(found: list[tuple[int, float]], held_out: int, samples: int = 1) -> str:
    """Held-out accuracy before and after, with 95 % intervals, in lines for a terminal.

    With several `samples` per problem the interval is that of one, which is the wider.

    Raises:
        LogError: fewer than two validations were logged.
    """
    if len(found) < 2:
        raise LogError(
            f"expected a validation before and one after training, got {len(found)}; "
            "is trainer.val_before_train on and trainer.test_freq positive?"
        )
    how = "greedy" if samples == 1 else f"mean of {samples} samples"
    lines = [f"held-out accuracy ({how}, 95 % interval)"]
    for name, (step, accuracy) in (("before", found[0]), ("after", found[-1])):
        _, low, high = wilson(accuracy * held_out, held_out)
        lines.append(f"  {name:<6} step {step:>4}   {accuracy:6.1%}   [{low:.1%}, {high:.1%}]   n = {held_out}")
    lines.append(f"  change              {100 * (found[-1][1] - found[0][1]):+.1f} points")
    return "\n".join(lines)


def answers(folder: Path) -> str:
    """How responses changed, from verl's `trainer.validation_data_dir`: the share that works in several lines, and one
    question's answers before and after, wrong and right where there is such a question.

    Raises:
        LogError: fewer than two validations were kept.
    """
    files = sorted(folder.glob("*.jsonl"), key=lambda path: int(path.stem))
    if len(files) < 2:
        raise LogError(f"expected the answers of a validation before and one after training in {folder}")
    before, after = (
        {row["input"]: row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
        for path in (files[0], files[-1])
    )
    shared = [key for key in before if key in after]
    if not shared:
        raise LogError(f"the validations in {folder} share no question")
    turned = [key for key in shared if after[key]["score"] > before[key]["score"]]
    worked = [sum("\n" in row["output"].strip() for row in rows.values()) / len(rows) for rows in (before, after)]
    lines = [f"responses that work in several lines   before {worked[0]:.0%}   after {worked[1]:.0%}"]
    key = (turned or shared)[0]
    lines.append("one question: " + key.strip().removesuffix("assistant").strip().splitlines()[-1])
    for name, rows in (("before", before), ("after", after)):
        text = rows[key]["output"].strip().replace("\n", "\n          ")
        lines.append(f"  {name:<6}  {text}   ({'right' if rows[key]['score'] > 0 else 'wrong'})")
    return "\n".join(lines)


def main() -> int:
    """Print the summary and write the curve; 1 with one sentence when the metrics do not allow it."""
    parser = argparse.ArgumentParser(
        description="Report a run's held-out accuracy before and after, and draw its curve."
    )
    parser.add_argument("metrics", type=Path)
    parser.add_argument("--curve", type=Path, default=None, help="PNG to write")
    parser.add_argument("--title", default="")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="number of validation problems")
    parser.add_argument("--answers", type=Path, default=None, help="the run's trainer.validation_data_dir")
    arguments = parser.parse_args()
    try:
        run = report.read_run(f"{arguments.title or 'run'}={arguments.metrics}")
        if arguments.curve is not None:
            report.draw([run], report.default_metrics([run]), arguments.curve, arguments.title)
            print(f"curve: {arguments.curve}")
        samples = samples_per_problem({metric: 0.0 for metric in run.curves})
        print(summary(validations(run.curves), arguments.held_out, samples))
        if arguments.answers is not None:
            print(answers(arguments.answers))
    except LogError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
