"""Adapters beside full training on the toy world, from verl's own logs: `python examples/adapters/table.py`."""

from dataclasses import dataclass
from pathlib import Path

from recipes.evaluation.report import Curves, LogError, read_curves
from recipes.evaluation.stats import wilson

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results")
PROBLEMS = 500
EVERY = 10
# Means over the tokens of a step, and over them the largest.
MEAN, LARGEST = "training/rollout_probs_diff_mean", "training/rollout_probs_diff_max"


@dataclass(frozen=True)
class Arm:
    """One run. `accuracy` is the metric of its validation, `log` what verl's file logger wrote.

    `roles` precede the names of what each trained policy logs.
    """

    recipe: str
    trains: str
    seed: int
    accuracy: str
    log: Path
    roles: tuple[str, ...] = ("",)


ARITHMETIC = "val-core/toy_arithmetic/acc/mean@1"
ARMS = (
    *(
        Arm("SPPO", "all weights", seed, ARITHMETIC, ROOT / f"recipes/sppo/results/sppo-{seed}.jsonl")
        for seed in (1, 2, 3)
    ),
    Arm("SPPO", "adapters of rank 8", 1, ARITHMETIC, RESULTS / "sppo-1.jsonl"),
    Arm("SeRL, `ground_truth`", "adapters of rank 8", 1, ARITHMETIC, RESULTS / "serl-1.jsonl"),
    Arm("tandem, the senior alone", "adapters of rank 8", 1, ARITHMETIC, RESULTS / "tandem-1.jsonl"),
    Arm(
        "PasoDoble, the Solver",
        "adapters of rank 8 for both roles",
        1,
        "val-core/toy_pasodoble/acc/mean@1",
        RESULTS / "pasodoble-1.jsonl",
        ("solver/", "proposer/"),
    ),
    Arm(
        "step_ppo, `preset=outcome`",
        "adapters of rank 8 for actor and critic",
        1,
        "val-core/toy_step_ppo/acc/mean@1",
        RESULTS / "step_ppo-1.jsonl",
    ),
)


def largest(curves: Curves, metric: str) -> float:
    """The largest value over the steps, LogError where none was logged."""
    if not curves.get(metric):
        raise LogError(f"the log has no {metric}")
    return max(curves[metric].values())


def table(arms: tuple[Arm, ...] = ARMS) -> str:
    """Markdown: greedy accuracy in percent with 95 % Wilson intervals, and the differences of probabilities.

    The change is that up to the last validation that every run has.

    Raises:
        LogError: a log without a validation before training, or without the differences.
    """
    logs = [(arm, read_curves([arm.log])) for arm in arms]
    last = max(step for arm, curves in logs for step in curves.get(arm.accuracy, {0: 0.0}))
    steps = list(range(0, last + 1, EVERY))
    shared = min(max(curves.get(arm.accuracy, {0: 0.0})) for arm, curves in logs)
    lines = [
        f"| recipe | trains | seed | steps | {' | '.join(f'step {step}' for step in steps)} | "
        f"change to step {shared} | difference, largest step | largest token |",
        "|" + "---|" * (len(steps) + 7),
    ]
    for arm, curves in logs:
        found = curves.get(arm.accuracy, {})
        if 0 not in found:
            raise LogError(f"{arm.log} has no {arm.accuracy} before training")
        end = max(found)
        cells = []
        for step in steps:
            _, low, high = wilson(found.get(step, 0) * PROBLEMS, PROBLEMS)
            interval = f" [{100 * low:.1f}, {100 * high:.1f}]" if step in (0, end) else ""
            cells.append(f"{100 * found[step]:.1f}{interval}" if step in found else "")
        mean, most = (max(largest(curves, role + metric) for role in arm.roles) for metric in (MEAN, LARGEST))
        trained = max(curves[arm.roles[0] + MEAN])
        lines.append(
            f"| {arm.recipe} | {arm.trains} | {arm.seed} | {trained} | {' | '.join(cells)} | "
            f"{100 * (found[shared] - found[0]):+.1f} | {mean:.1e} | {most:.1e} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
