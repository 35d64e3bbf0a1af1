"""Re-rank graded responses by a process reward model: best-of-n against pass@1, maj@n and the oracle.

    python -m recipes.evaluation.rerank outputs/evaluation/MODEL/BENCHMARK.samples.jsonl steps.jsonl --n 1 4 8

`steps.jsonl` has one line per response: {"problem": id, "sample": int, "steps": [probability of each step being
good]}, and, where steps were labelled, "labels": [true or false of each step], which adds step accuracy and
calibration.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from recipes.evaluation.process_reward import Aggregation, best_of_n, calibration, response_score, step_accuracy
from recipes.evaluation.stats import bootstrap_mean, pass_at_k


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
        if not isinstance(row["steps"], list) or not all(_is_probability(value) for value in row["steps"]):
            raise ValueError(
                f"response {row['sample']} to problem {row['problem']}: expected the steps' probabilities, found "
                f"{str(row['steps'])[:80]}"
            )
    scored = {(str(row["problem"]), int(row["sample"])): response_score(row["steps"], aggregation) for row in steps}
    problems: dict[str, list[tuple[float, bool]]] = {}
    for row in samples:
        key = (str(row["problem"]), int(row["sample"]))
        if row["status"] != "score":
            continue
        if key not in scored:
            raise ValueError(f"response {key[1]} to problem {key[0]} has no step scores")
        problems.setdefault(key[0], []).append((scored[key], bool(row["right"])))
    if not problems:
        raise ValueError("found no graded response")
    result: dict[str, Any] = {"problems": len(problems), "aggregation": aggregation}
    for size in n:
        chosen = [best_of_n(*zip(*found, strict=True), size) for found in problems.values()]
        oracle = [pass_at_k(len(found), sum(right for _, right in found), size) for found in problems.values()]
        result[f"best-of-{size}"] = bootstrap_mean(chosen)._asdict()
        result[f"pass@{size}"] = bootstrap_mean(oracle)._asdict()
    labelled = [row for row in steps if "labels" in row]
    if labelled:
        predicted = [value for row in labelled for value in row["steps"]]
        labels = [label for row in labelled for label in row["labels"]]
        error, bins = calibration(predicted, labels)
        result["steps"] = {
            "count": len(labels),
            "accuracy": step_accuracy(predicted, labels),
            "calibration_error": error,
            "bins": [asdict(part) for part in bins],
        }
    return result


def _is_probability(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _read(path: Path, fields: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of a file; each must be an object with these fields, of which `sample` is a whole number."""
    rows = []
    # responses may hold other characters that end a line for splitlines, such as U+2028
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        row = json.loads(line)
        if not isinstance(row, dict) or not set(fields) <= row.keys() or not isinstance(row["sample"], int):
            raise ValueError(f"{path}, line {number}: expected an object with {', '.join(fields)}")
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
