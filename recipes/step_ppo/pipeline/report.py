"""`python -m recipes.step_ppo.pipeline.report`: what a pipeline reached, as Markdown, JSON and a calibration plot.

The PRM is compared with completions of held-out states: its scores come from `score`, the truth from `complete` with
many completions per state, since the rate over K = 3 is itself noisy.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from recipes.core import files
from recipes.evaluation.report import picture, read_curves
from recipes.evaluation.stats import Interval, bootstrap_mean
from recipes.step_ppo.calibration import calibration_bins, calibration_error, correlation, expected_value
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.records import PairRecord, Scores, Trajectories, Value, expand, read
from recipes.step_ppo.steps import StepStyle, segment_response

ACCURACY_ENDING = "/acc/mean@1"


def states_beside_scores(
    trajectories: Iterable[dict], scores: Iterable[dict], values: Iterable[dict]
) -> tuple[Tensor, Tensor, int]:
    """Expected value by the PRM and share of right completions of every valued state, each (N,) in [0, 1], and how
    many states were left out.

    A state ends with the line that opens its step. Where lines without a label of their own follow, the step, and so
    its score, ends later, and the state is left out.

    Args:
        trajectories: records of `collect`. scores: of `score`. values: of `complete`, with any number of completions.

    Raises:
        ValueError: a state of a response without scores, or that ends at no line of it: the files belong to different
            trajectories.
    """
    texts = {record["id"]: [response["text"] for response in record["responses"]] for record in trajectories}
    tables = {(record["id"], scored["response_index"]): scored for record in scores for scored in record["scores"]}
    expected, observed, left_out = [], [], 0
    for record in values:
        if record["value"] is None:
            continue
        scored = tables.get((record["id"], record["response_index"]))
        text = dict(enumerate(texts.get(record["id"], ()))).get(record["response_index"])
        if scored is None or text is None or not _ends_a_line(text, record["prefix_length"]):
            raise ValueError(
                f"state {record['key']} ends at no line of a scored response: do all files belong together?"
            )
        # The space that joins prompt and response counts in a response's own positions.
        style: StepStyle = "lines" if "Line" in scored["kinds"] else "react"
        ends = [step.end - 1 for step in segment_response(f" {text}", style)]
        rows = scored.get("probabilities", ())
        if len(ends) != len(rows):
            raise ValueError(
                f"the response of state {record['key']} has {len(ends)} steps, {len(rows)} of them with probabilities: "
                "do all files belong together?"
            )
        if record["prefix_length"] not in ends:
            left_out += 1
            continue
        row = rows[ends.index(record["prefix_length"])]
        expected.append(expected_value(torch.tensor(row, dtype=torch.float64)).item())
        observed.append(record["value"] / record["num_completions"])
    return torch.tensor(expected, dtype=torch.float64), torch.tensor(observed, dtype=torch.float64), left_out


def _ends_a_line(text: str, position: int) -> bool:
    return f"{text}\n"[position : position + 1] == "\n"


def agreement(expected: Tensor, observed: Tensor) -> dict[str, float]:
    """How the PRM agrees with the completions: `accuracy` (both above or both not above one half), `correlation`
    (Pearson), `calibration_error` over ten bins, `count`.

    Args:
        expected: (N,) PRM. observed: (N,) completions.

    Raises:
        ValueError: fewer than two states.
    """
    if len(expected) < 2:
        raise ValueError(f"expected at least two valued states, found {len(expected)}")
    return {
        "count": len(expected),
        "accuracy": ((expected > 0.5) == (observed > 0.5)).double().mean().item(),
        "correlation": correlation(expected, observed),
        "calibration_error": calibration_error(expected, observed),
    }


def accuracy_curve(metrics: Path) -> dict[int, float]:
    """Validation accuracy by step from verl's file logger, the mean over data sources.

    Raises:
        LogError: the file is missing, or no such log.
        ValueError: the file has none.
    """
    points: dict[int, list[float]] = {}
    for metric, curve in read_curves([metrics]).items():
        if metric.startswith("val-") and metric.endswith(ACCURACY_ENDING):
            for step, value in curve.items():
                points.setdefault(step, []).append(value)
    if not points:
        raise ValueError(f"{metrics} holds no validation accuracy ({ACCURACY_ENDING})")
    return {step: sum(values) / len(values) for step, values in sorted(points.items())}


def measured_accuracy(text: str) -> tuple[str, float]:
    """Read NAME=SHARE.

    Raises:
        ValueError: no such pair, or no share in [0, 1], as when it is given in percent.
    """
    name, _, share = text.partition("=")
    try:
        accuracy = float(share)
    except ValueError:
        accuracy = float("nan")
    if not name or not 0 <= accuracy <= 1:
        raise ValueError(f"--accuracy {text}: expected NAME=SHARE with a share in [0, 1]")
    return name, accuracy


def interval(accuracy: float, held_out: int) -> Interval:
    """95 % bootstrap interval over the held-out problems."""
    right = round(accuracy * held_out)
    return bootstrap_mean([1.0] * right + [0.0] * (held_out - right))


def draw_calibration(expected: Tensor, observed: Tensor, path: Path) -> None:
    """Completion rate over the PRM's expected value in ten bins; the area of a dot is the number of its states."""
    means, rates, sizes = zip(*calibration_bins(expected, observed), strict=True)
    with picture(path, inches=(4.5, 4.5)) as (axes,):
        axes.plot([0, 1], [0, 1], color=axes.xaxis.label.get_color(), marker="", linewidth=1)
        axes.scatter(means, rates, s=[600 * size / len(expected) + 10 for size in sizes], color="C0", alpha=0.7)
        axes.set(xlabel="PRM: expected share of hits", ylabel="share of right completions", xlim=(0, 1), ylim=(0, 1))


def markdown(prm: Mapping[str, float], pairs: Mapping[str, int], accuracies: Mapping[str, Interval]) -> str:
    """The report as text."""
    lines = ["| held-out greedy accuracy | % | 95 % |", "|---|---|---|"]
    lines += [
        f"| {name} | {100 * interval.mean:.1f} | [{100 * interval.low:.1f}, {100 * interval.high:.1f}] |"
        for name, interval in accuracies.items()
    ]
    lines += [
        "",
        f"PRM on {prm['count']} held-out states: accuracy {prm['accuracy']:.3f}, correlation with the completion rate "
        f"{prm['correlation']:.3f}, calibration error {prm['calibration_error']:.3f}; "
        f"{prm['left_out']} left out, whose step goes on after their line.",
        f"Pairs: {pairs.get('contrastive', 0)} contrastive, {pairs.get('positive', 0)} positive-positive.",
    ]
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__)
    parser.add_argument("--round", type=Path, required=True, help="folder that iterate wrote")
    parser.add_argument("--truth", nargs="+", required=True, help="output of complete for held-out states")
    parser.add_argument("--accuracy", nargs="*", default=[], metavar="NAME=SHARE", help="a measured held-out accuracy")
    parser.add_argument(
        "--run", nargs="*", default=[], metavar="NAME=FILE", help="verl's file log; its last validation is reported"
    )
    parser.add_argument("--start", metavar="NAME", help="name for the first validation of the first --run")
    parser.add_argument("--held-out", type=int, required=True, help="number of validation problems")
    parser.add_argument("--output", type=Path, required=True, help="folder of report.md, report.json, calibration.png")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)

    expected, observed, left_out = states_beside_scores(
        read([args.round / "trajectories.jsonl"], Trajectories),
        read([args.round / "scores.jsonl"], Scores),
        read(expand(args.truth), Value),
    )
    prm = agreement(expected, observed) | {"left_out": left_out}
    pairs = Counter(record["kind"] for record in read([args.round / "pairs.jsonl"], PairRecord))
    accuracies = dict(measured_accuracy(item) for item in args.accuracy)
    curves = {name: accuracy_curve(Path(path)) for name, _, path in (item.partition("=") for item in args.run)}
    if args.start and curves:
        accuracies[args.start] = next(iter(next(iter(curves.values())).values()))
    accuracies |= {name: list(curve.values())[-1] for name, curve in curves.items()}
    intervals = {name: interval(share, args.held_out) for name, share in accuracies.items()}
    args.output.mkdir(parents=True, exist_ok=True)
    draw_calibration(expected, observed, args.output / "calibration.png")
    content = {
        "prm": prm,
        "calibration": calibration_bins(expected, observed),
        "pairs": dict(pairs),
        "accuracies": {name: bounds._asdict() for name, bounds in intervals.items()},
        "curves": curves,
    }
    files.write_json(args.output / "report.json", content)
    text = markdown(prm, pairs, intervals)
    files.write(args.output / "report.md", text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    command.run(main)
