"""Say what a run did and draw its curve: `python examples/quickstart_report.py metrics.jsonl --curve curve.png`."""

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

HELD_OUT = 500
REWARD = "critic/score/mean"
VALIDATION_ENDINGS = ("/acc/mean@1", "/reward/mean@1", "/score/mean@1")
NORMAL_97_5 = 1.959963984540054


class ReportError(ValueError):
    """The metrics file does not hold what a report needs."""


@dataclass(frozen=True)
class Curves:
    """Training reward and validation accuracy, each as (step, value), in order of steps."""

    reward: list[tuple[int, float]]
    validation: list[tuple[int, float]]


def read_metrics(path: Path) -> Curves:
    """Read verl's file log, one ``{"step": int, "data": {metric: value}}`` a line.

    A last line that is cut short (the run is still writing, or was killed) is left out.

    Raises:
        ReportError: the file is missing, or a line before the last is not such an object.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError as error:
        raise ReportError(f"{path} does not exist; did the run start with the file logger on?") from error
    reward, validation = {}, {}
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            step, data = int(record["step"]), dict(record["data"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise ReportError(
                f'{path}, line {number}: expected {{"step": int, "data": {{...}}}}, got {line[:80]!r}'
            ) from error
        if REWARD in data:
            reward[step] = float(data[REWARD])
        if (accuracy := validation_accuracy(data)) is not None:
            validation[step] = accuracy
    return Curves(reward=sorted(reward.items()), validation=sorted(validation.items()))


def validation_accuracy(data: dict) -> float | None:
    """Validation accuracy in one step's metrics (mean over data sources), or None if the step has no validation."""
    for ending in VALIDATION_ENDINGS:
        values = [float(value) for key, value in data.items() if key.startswith("val-") and key.endswith(ending)]
        if values:
            return sum(values) / len(values)
    return None


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson 1927, score interval without continuity correction)."""
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"expected 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")
    share, z2 = successes / trials, NORMAL_97_5**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = NORMAL_97_5 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def summary(curves: Curves, held_out: int) -> str:
    """Held-out accuracy before and after, with 95 % intervals, in lines for a terminal.

    Raises:
        ReportError: fewer than two validations were logged.
    """
    if len(curves.validation) < 2:
        raise ReportError(
            f"expected a validation before and one after training, got {len(curves.validation)}; "
            "is trainer.val_before_train on and trainer.test_freq positive?"
        )
    lines = ["held-out accuracy (greedy, 95 % interval)"]
    for name, (step, accuracy) in (("before", curves.validation[0]), ("after", curves.validation[-1])):
        low, high = wilson_interval(accuracy * held_out, held_out)
        lines.append(f"  {name:<6} step {step:>4}   {accuracy:6.1%}   [{low:.1%}, {high:.1%}]   n = {held_out}")
    rise = 100 * (curves.validation[-1][1] - curves.validation[0][1])
    lines.append(f"  change              {rise:+.1f} points")
    return "\n".join(lines)


def draw(metrics: Path, path: Path, title: str) -> None:
    """Draw the training reward and the held-out accuracy over the steps, as `recipes.evaluation.report` does."""
    from recipes.evaluation import report
    from recipes.evaluation.learning_curves import default_metrics

    run = report.read_run(f"{title or 'run'}={metrics}")
    report.draw([run], default_metrics([run]), path, title)


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
        curves = read_metrics(arguments.metrics)
        if arguments.curve is not None:
            draw(arguments.metrics, arguments.curve, arguments.title)
            print(f"curve: {arguments.curve}")
        print(summary(curves, arguments.held_out))
    except ReportError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
