"""`python -m reward_fns.check_dataset data.parquet`: whether every gold answer scores 1.0 against itself.

A gold answer that does not parse, or does not equal itself, would be a Skip for each of its responses; better to
know before training.
Exits with 1 when there are offenders, with 2 when the file cannot be read.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reward_fns.errors import ResultError
from reward_fns.gold import gold_answers
from reward_fns.math import score_batch
from reward_fns.pool import Kind, shared_pool
from reward_fns.result import Score


@dataclass(frozen=True)
class Offender:
    """A row whose gold answer cannot serve, and why."""

    row: int
    problem: str
    ground_truth: str


def read_rows(path: Path, key: str) -> Iterator[Any]:
    """The gold answers of a parquet, json-lines or json file.

    Args:
        key: dotted path to the gold answer in a row, for example `reward_model.ground_truth`.

    Raises:
        ResultError: another kind of file, no list of rows, or rows without the key.
    """
    if path.suffix == ".parquet":
        import pyarrow.parquet

        rows: Iterable[Any] = (
            row for batch in pyarrow.parquet.ParquetFile(path).iter_batches() for row in batch.to_pylist()
        )
    elif path.suffix in (".jsonl", ".ndjson"):
        # texts may hold other characters that end a line for splitlines, such as U+2028
        rows = (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip())
    elif path.suffix == ".json":
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list):
            raise ResultError(f"{path}: expected a list of rows, found {type(rows).__name__}")
    else:
        raise ResultError(f"{path}: expected a .parquet, .jsonl or .json file")
    for number, row in enumerate(rows):
        value = row
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                raise ResultError(f"{path}, row {number}: no field {key!r}; name the right one with --key")
            value = value[part]
        yield value


def check(ground_truths: Sequence[Any], workers: int | None = None, time_limit: float = 5.0) -> list[Offender]:
    r"""The gold answers that do not parse, do not equal themselves, or do not score 1.0 when a response boxes them."""
    problems: dict[int, str] = {}
    pairs: list[tuple[int, str]] = []
    for row, raw in enumerate(ground_truths):
        answers, problem = gold_answers(raw)
        if not answers:
            problems[row] = problem
        pairs += [(row, answer) for answer in answers]
    rows = [(answer,) for _, answer in pairs]
    outcomes = shared_pool(workers).map("reward_fns.algebra:check_gold", rows, time_limit=time_limit)
    for (row, _), outcome in zip(pairs, outcomes, strict=True):
        problem = outcome.value if outcome.kind is Kind.DONE else f"{outcome.kind.value} {outcome.detail}".strip()
        if problem:
            problems.setdefault(row, problem)
    sound = [(row, answer) for row, answer in pairs if row not in problems]
    boxed = [rf"\boxed{{{answer}}}" for _, answer in sound]
    results = score_batch(boxed, [answer for _, answer in sound], time_limit=time_limit, workers=workers)
    for (row, _), result in zip(sound, results, strict=True):
        if not isinstance(result, Score) or result.value != 1.0:
            problems.setdefault(row, f"scores {getattr(result, 'value', 'nothing')} against itself: {result.reason}")
    return [Offender(row, problems[row], repr(ground_truths[row])[:200]) for row in sorted(problems)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reward_fns.check_dataset", description=__doc__.partition("\n")[0])
    parser.add_argument("path", type=Path, nargs="+", help="parquet, jsonl or json file")
    parser.add_argument("--key", default="reward_model.ground_truth", help="dotted path to the gold answer in a row")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for one gold answer")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max-listed", type=int, default=50, help="offenders printed per file")
    options = parser.parse_args(arguments)
    if options.workers < 1 or not options.time_limit > 0:
        parser.error("--workers and --time-limit must be positive")
    offending = 0
    for path in options.path:
        try:
            golds = list(read_rows(path, options.key))
        except (OSError, ValueError) as error:
            print(f"{path}: cannot be read: {error}", file=sys.stderr)
            return 2
        offenders = check(golds, options.workers, options.time_limit)
        offending += len(offenders)
        print(f"{path}: {len(golds)} gold answers, {len(offenders)} do not score 1.0 against themselves")
        for offender in offenders[: options.max_listed]:
            print(f"  row {offender.row}: {offender.problem}: {offender.ground_truth}")
        for problem, count in Counter(offender.problem for offender in offenders).most_common():
            print(f"  {count} x {problem}")
    return 1 if offending else 0


if __name__ == "__main__":
    sys.exit(main())
