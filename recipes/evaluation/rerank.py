"""Quality of a process reward model: step accuracy, calibration, and best-of-n against pass@1, maj@n and the oracle.

    python -m recipes.evaluation.rerank outputs/evaluation/MODEL/BENCHMARK.samples.jsonl steps.jsonl --n 1 4 8

`steps.jsonl` has one line per response: {"problem": id, "sample": int, "steps": [probability of each step being
good]}, and, where steps were labelled, "labels": [true or false of each step], which adds step accuracy and
calibration.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from recipes.evaluation.stats import bootstrap_mean, pass_at_k

Aggregation = Literal["product", "minimum", "last", "mean"]


def step_accuracy(probabilities: Sequence[float], labels: Sequence[bool], threshold: float = 0.5) -> float:
    """Share of steps whose predicted probability of being good lies on the label's side of the threshold (>= is good).

    Raises:
        ValueError: no steps, or lengths that differ.
    """
    predicted, observed = _arrays(probabilities, labels)
    return float(((predicted >= threshold) == observed).mean())


def calibration(
    probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10
) -> tuple[float, list[dict[str, float]]]:
    """Expected calibration error with equally wide bins, and the bins (low, high] that hold steps: their number, the
    mean predicted probability and the share that is good.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", equation 3.

    Raises:
        ValueError: no steps, lengths that differ, or a probability outside [0, 1].
    """
    predicted, observed = _arrays(probabilities, labels)
    if predicted.min() < 0 or predicted.max() > 1:
        raise ValueError(f"found probabilities from {predicted.min()} to {predicted.max()}; expected them in [0, 1]")
    edges = np.linspace(0.0, 1.0, bins + 1)
    which = np.clip(np.searchsorted(edges, predicted, side="left") - 1, 0, bins - 1)
    filled = [
        {
            "low": float(edges[index]),
            "high": float(edges[index + 1]),
            "steps": int(members.sum()),
            "predicted": float(predicted[members].mean()),
            "observed": float(observed[members].mean()),
        }
        for index in range(bins)
        if (members := which == index).any()
    ]
    error = sum(part["steps"] * abs(part["predicted"] - part["observed"]) for part in filled) / predicted.size
    return float(error), filled


def response_score(step_probabilities: Sequence[float], aggregation: Aggregation = "product") -> float:
    """One number for a response from the probabilities of its steps; a response without steps scores 0."""
    reductions = {"product": np.prod, "minimum": np.min, "last": lambda steps: steps[-1], "mean": np.mean}
    steps = np.asarray(step_probabilities, dtype=np.float64)
    return float(reductions[aggregation](steps)) if steps.size else 0.0


def best_of_n(scores: Sequence[float], correct: Sequence[bool], n: int) -> float:
    """Exact expectation of best-of-n: the best-scored of n responses, drawn without replacement, is right.

    Equal best scores share the choice evenly.

    Raises:
        ValueError: unless there are as many scores as responses and 1 <= n <= their number.
    """
    ranked, truth = _arrays(scores, correct)
    if not 1 <= n <= ranked.size:
        raise ValueError(f"best-of-{n} needs at least {n} responses per problem and n >= 1, found {ranked.size}")
    total, below = 0.0, 0
    for value in np.unique(ranked):
        tied = ranked == value
        up_to = below + int(tied.sum())
        # The best of the draw has this value when the draw reaches it and nothing above it.
        total += (comb(up_to, n) - comb(below, n)) / comb(ranked.size, n) * float(truth[tied].mean())
        below = up_to
    return total


def _arrays(values: Sequence[float], labels: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    if len(values) != len(labels) or not len(values):
        raise ValueError(f"found {len(values)} values and {len(labels)} labels; expected as many of each, at least one")
    return np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=bool)


def rerank(
    samples: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]], n: Sequence[int], aggregation: Aggregation
) -> dict[str, Any]:
    """Best-of-n and pass@n over problems, with intervals; step accuracy and calibration where there are labels.

    Args:
        samples: lines of a `samples.jsonl`; those that could not be graded are left out.
        steps: lines of a `steps.jsonl`.
        n: numbers of responses to choose from.

    Raises:
        ValueError: a graded response without step scores, steps that are no probabilities, a problem with fewer than n
            responses, or unequal labels.
    """
    for row in steps:
        values = row["steps"] if isinstance(row["steps"], list) else [None]
        if not all(isinstance(value, int | float) and 0 <= value <= 1 for value in values):
            raise ValueError(
                f"response {row['sample']} to problem {row['problem']}: expected the steps' probabilities, found "
                f"{str(row['steps'])[:80]}"
            )
    scores = {(str(row["problem"]), row["sample"]): response_score(row["steps"], aggregation) for row in steps}
    problems: dict[str, list[tuple[float, bool]]] = {}
    for row in samples:
        key = (str(row["problem"]), row["sample"])
        if row["status"] == "score":
            if key not in scores:
                raise ValueError(f"response {key[1]} to problem {key[0]} has no step scores")
            problems.setdefault(key[0], []).append((scores[key], bool(row["right"])))
    if not problems:
        raise ValueError("found no graded response")
    result: dict[str, Any] = {"problems": len(problems), "aggregation": aggregation}
    for size in n:
        best = [best_of_n(*zip(*responses, strict=True), size) for responses in problems.values()]
        oracle = [pass_at_k(len(one), sum(right for _, right in one), size) for one in problems.values()]
        result[f"best-of-{size}"] = bootstrap_mean(best)._asdict()
        result[f"pass@{size}"] = bootstrap_mean(oracle)._asdict()
    labelled = [row for row in steps if "labels" in row]
    if labelled:
        predicted = [value for row in labelled for value in row["steps"]]
        labels = [label for row in labelled for label in row["labels"]]
        error, bins = calibration(predicted, labels)
        accuracy = step_accuracy(predicted, labels)
        result["steps"] = {"count": len(labels), "accuracy": accuracy, "calibration_error": error, "bins": bins}
    return result


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of a file; each must be an object with these columns, of which `sample` is a whole number."""
    rows = []
    # Responses may hold other characters that end a line for splitlines, such as U+2028.
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        row = json.loads(line)
        if not isinstance(row, dict) or not set(columns) <= row.keys() or not isinstance(row["sample"], int):
            raise ValueError(f"{path}, line {number}: expected an object with {', '.join(columns)}")
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.evaluation.rerank", description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--n", type=int, nargs="+", default=[1])
    parser.add_argument("--aggregation", choices=get_args(Aggregation), default="product")
    options = parser.parse_args(arguments)
    try:
        samples = _read(options.samples, ("problem", "sample", "status", "right"))
        steps = _read(options.steps, ("problem", "sample", "steps"))
        print(json.dumps(rerank(samples, steps, options.n, options.aggregation), indent=2))
    except (OSError, ValueError) as error:
        print(f"rerank: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
