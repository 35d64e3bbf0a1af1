"""Say what a run did and draw its curve: `python examples/quickstart_report.py metrics.jsonl --curve curve.png`."""

import argparse
import sys
from pathlib import Path

from recipes.evaluation import learning_curves, report
from recipes.evaluation.intervals import wilson
from recipes.evaluation.learning_curves import LogError

HELD_OUT = 500
REWARD = "critic/score/mean"
VALIDATION_ENDINGS = ("/acc/mean@1", "/reward/mean@1", "/score/mean@1")


def validation_accuracy(data: dict) -> float | None:
    """Validation accuracy in one step's metrics (mean over data sources), or None if the step has no validation."""
    for ending in VALIDATION_ENDINGS:
        values = [float(value) for key, value in data.items() if key.startswith("val-") and key.endswith(ending)]
        if values:
            return sum(values) / len(values)
    return None


def validations(curves: learning_curves.Curves) -> list[tuple[int, float]]:
    """(step, accuracy) of every validation, in order of steps."""
    steps = sorted({step for curve in curves.values() for step in curve})
    found = [
        (step, validation_accuracy({metric: curve[step] for metric, curve in curves.items() if step in curve}))
        for step in steps
    ]
    return [(step, accuracy) for step, accuracy in found if accuracy is not None]


def summary(found: list[tuple[int, float]], held_out: int) -> str:
    """Held-out accuracy before and after, with 95 % intervals, in lines for a terminal.

    Raises:
        LogError: fewer than two validations were logged.
    """
    if len(found) < 2:
        raise LogError(
            f"expected a validation before and one after training, got {len(found)}; "
            "is trainer.val_before_train on and trainer.test_freq positive?"
        )
    lines = ["held-out accuracy (greedy, 95 % interval)"]
    for name, (step, accuracy) in (("before", found[0]), ("after", found[-1])):
        _, low, high = wilson(accuracy * held_out, held_out)
        lines.append(f"  {name:<6} step {step:>4}   {accuracy:6.1%}   [{low:.1%}, {high:.1%}]   n = {held_out}")
    lines.append(f"  change              {100 * (found[-1][1] - found[0][1]):+.1f} points")
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
    arguments = parser.parse_args()
    try:
        run = report.read_run(f"{arguments.title or 'run'}={arguments.metrics}")
        if arguments.curve is not None:
            report.draw([run], learning_curves.default_metrics([run]), arguments.curve, arguments.title)
            print(f"curve: {arguments.curve}")
        print(summary(validations(run.curves), arguments.held_out))
    except LogError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
