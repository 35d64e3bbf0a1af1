"""Score a checkpoint: pass@k macro-averaged over benchmarks, from the verdicts of one validation."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.core import files
from recipes.evaluation.stats import pass_at_k


@dataclass(frozen=True)
class Problem:
    """The verdicts on one validation problem.

    Attributes:
        source: data source of the problem.
        right: right responses.
        judged: responses with a verdict; one that could not be judged counts as neither right nor wrong.
    """

    source: str
    right: int
    judged: int


def problems(
    sources: Sequence[str],
    uids: Sequence[str],
    accuracies: Sequence[float | None],
    skipped: Sequence[float | None] | None = None,
    expected: Mapping[tuple[str, str], int] | None = None,
) -> list[Problem]:
    """Group a validation's responses by problem.

    Args:
        sources, uids, accuracies: one entry per response; an accuracy of at least 0.5 is right, None was not judged.
        skipped: 1 where the judge, not the response, was at fault.
        expected: (source, uid) -> responses asked for; those that never arrived count as wrong, as in verl's metrics.
    """
    counts: dict[tuple[str, str], list[int]] = {key: [0, 0, 0] for key in expected or {}}
    for position, key in enumerate(zip(map(str, sources), map(str, uids), strict=True)):
        right, judged, arrived = counts.setdefault(key, [0, 0, 0])
        accuracy = accuracies[position]
        if accuracy is None or (skipped is not None and skipped[position]):
            counts[key] = [right, judged, arrived + 1]
        else:
            counts[key] = [right + (accuracy >= 0.5), judged + 1, arrived + 1]
    return [
        Problem(source, right, judged + max((expected or {}).get((source, uid), arrived) - arrived, 0))
        for (source, uid), (right, judged, arrived) in counts.items()
    ]


def macro_pass_at_k(
    verdicts: Iterable[Problem], k: int, benchmarks: Mapping[str, Sequence[str]] | None = None
) -> tuple[float, dict[str, float], int]:
    """Average over benchmarks the mean pass@k of their problems.

    Args:
        verdicts: the problems of a validation.
        k: responses drawn.
        benchmarks: name -> the data sources pooled under it; None takes each data source by itself.

    Returns:
        The macro average, each benchmark's pass@k, and how many problems had fewer than k judged responses and were
        left out.

    Raises:
        ValueError: a data source outside every benchmark, or a benchmark without a problem that k responses judge.
    """
    pooled = {source: name for name, group in (benchmarks or {}).items() for source in group}
    values: dict[str, list[float]] = {name: [] for name in benchmarks or {}}
    left_out = 0
    for problem in verdicts:
        if benchmarks is not None and problem.source not in pooled:
            raise ValueError(
                f"validation data source {problem.source!r} belongs to no benchmark; known are {', '.join(pooled)}"
            )
        group = values.setdefault(pooled.get(problem.source, problem.source), [])
        if problem.judged < k:
            left_out += 1
        else:
            group.append(pass_at_k(problem.judged, problem.right, k))
    empty = [name for name, scores in values.items() if not scores]
    if empty or not values:
        raise ValueError(f"no problem with {k} judged responses in {', '.join(empty) or 'the validation'}")
    means = {name: sum(scores) / len(scores) for name, scores in values.items()}
    return sum(means.values()) / len(means), means, left_out


RECORD = "best.json"
FOLDER = "best"


def read_record(directory: Path) -> dict | None:
    """Read the record of `best`: {"step", "metric", "value"}; None when there is none.

    Raises:
        ValueError: the record is not what `update_best` writes.
    """
    path = directory / FOLDER / RECORD
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {"step": int(record["step"]), "metric": str(record["metric"]), "value": float(record["value"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a record of the best checkpoint: {error}; move it away") from error


def update_best(directory: Path, step: int, metric: str, value: float) -> bool:
    """Make `directory/best` a copy of `global_step_<step>` when `value` is the highest so far; returns whether it is.

    Files are hard-linked where the file system allows it, so that a copy costs nothing until verl deletes the original.
    A step without a checkpoint changes nothing, an equal value of an earlier step neither. A record of this step or a
    later one comes from before a resume, and does not count. A kill leaves the former `best`; or, between two renames,
    it as `best.former` beside the complete `best.partial`, and the next call puts that in place first.
    """
    source, target = directory / f"global_step_{step}", directory / FOLDER
    if not source.is_dir():
        return False
    partial, former = directory / f"{FOLDER}.partial", directory / f"{FOLDER}.former"
    if former.exists() and not target.exists():
        os.replace(partial if (partial / RECORD).is_file() else former, target)
    record = read_record(directory)
    if record is not None and record["step"] < step and record["metric"] == metric and record["value"] >= value:
        return False
    for leftover in (partial, former):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(source, partial / source.name, copy_function=_link_or_copy)
    files.write_json(partial / RECORD, {"step": step, "metric": metric, "value": value}, indent=None)
    if target.exists():
        os.replace(target, former)
    os.replace(partial, target)
    shutil.rmtree(former, ignore_errors=True)
    return True


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        return shutil.copy2(source, target)
    return target
