"""Precision, recall and time of a grader on a table of cases: `python tests/tools/score_cases.py FILE ...`.

A table is JSON lines with `gold`, `response` and `expected` (1 or 0; "skip" where no response can be judged), and
optionally `kind` (or `class`), the class that a row belongs to. Ours, in `tests/reward_fns/cases`, also hold `id`,
`reason` (the one that the strict rule gives), `why` (what a row is about) and, for multiple choice, `style`.
`--grader` takes `strict`, `lenient`, `math-verify` (the bare library, one process, its own time-outs) or
`module:function` of any other grader, for example `verl.utils.reward_score.math_reward:compute_score`.

A row counts as accepted when its score is positive. Precision is the share of right rows among the accepted, recall
the share of accepted among the right rows; a row that is skipped is not accepted. Exits with 1 under
`--require-clean` when a wrong row is accepted.
"""

import argparse
import inspect
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reward_fns.errors import ResultError
from reward_fns.forked_worker import resolve
from reward_fns.math import score_batch
from reward_fns.pool import Kind, Pool
from reward_fns.result import Score, Skip, normalise

CASES = Path(__file__).parents[1] / "reward_fns" / "cases"


@dataclass
class Tally:
    """How often rows of one class were accepted, and the seconds that took."""

    right: int = 0
    wrong: int = 0
    right_accepted: int = 0
    wrong_accepted: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def add(self, expected: float, result: Score | Skip, seconds: float) -> None:
        """Count one row."""
        accepted = isinstance(result, Score) and result.value > 0
        self.skipped += isinstance(result, Skip)
        self.seconds += seconds
        if expected:
            self.right += 1
            self.right_accepted += accepted
        else:
            self.wrong += 1
            self.wrong_accepted += accepted

    @property
    def precision(self) -> float | None:
        """Share of right rows among the accepted; None when nothing was accepted."""
        accepted = self.right_accepted + self.wrong_accepted
        return self.right_accepted / accepted if accepted else None

    @property
    def recall(self) -> float | None:
        """Share of accepted among the right rows; None when there is no right row."""
        return self.right_accepted / self.right if self.right else None

    def line(self, name: str) -> str:
        """One line of the printed table."""
        shown = [f"{value:9.3f}" if value is not None else f"{'-':>9}" for value in (self.precision, self.recall)]
        count = self.right + self.wrong
        accepts = f"{self.right_accepted:6d}/{self.right:<6d}{self.wrong_accepted:6d}/{self.wrong:<6d}"
        return f"{name:<34}{''.join(shown)}  {accepts}{self.skipped:6d}{1000 * self.seconds / max(count, 1):10.2f}"


def read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of a table.

    Raises:
        ResultError: a line that is no JSON object with `gold`, `response` and `expected`.
    """
    rows = []
    # responses may hold other characters that end a line for splitlines, such as U+2028
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row = dict(row, expected=row["expected"] if row["expected"] == "skip" else float(row["expected"]))
            missing = {"gold", "response"} - set(row)
        except (ValueError, KeyError, TypeError) as error:
            raise ResultError(f"{path}, line {number}: expected a JSON object with gold, response, expected") from error
        if missing:
            raise ResultError(f"{path}, line {number}: {sorted(missing)} missing")
        rows.append(row)
    return rows


def load_cases(*families: str) -> list[dict[str, Any]]:
    """The rows of our own tables: of the named families, such as right or hostile, or of all."""
    names = families or sorted(path.stem for path in CASES.glob("*.jsonl"))
    return [row | {"family": name} for name in names for row in read_table(CASES / f"{name}.jsonl")]


def grade(reference: str, response: str, gold: str) -> float | None:
    """The score that a grader gives, whatever of the usual signatures it has; None when it judges nothing."""
    function = resolve(reference)
    names = inspect.signature(function).parameters
    named: dict[str, Any] = {"ground_truth": gold, "data_source": "score_cases", "extra_info": {}}
    named |= {"solution_str": response, "model_output": response, "response": response, "gold": gold}
    found = function(**{name: named[name] for name in names if name in named})
    result = normalise(found[0] if isinstance(found, tuple) else found)
    return result.value if isinstance(result, Score) else None


def bare_math_verify(response: str, gold: str) -> float:
    """math-verify as its own README shows it."""
    from math_verify import parse, verify

    return float(verify(parse(rf"\boxed{{{gold}}}"), parse(response)))


def judge(rows: Sequence[dict[str, Any]], grader: str, pool: Pool, time_limit: float) -> list[tuple[Any, float]]:
    """The result of each row and its seconds.

    Our own modes run through `score_batch`; other graders one row at a time in a worker of the pool, where a row that
    hits a limit is not accepted.
    """
    golds, responses = [row["gold"] for row in rows], [row["response"] for row in rows]
    if grader in ("strict", "lenient"):
        score_batch(responses[:4], golds[:4], mode=grader)  # so that the start of the workers is not measured
        started = time.perf_counter()
        results = score_batch(responses, golds, mode=grader, time_limit=time_limit)
        share = (time.perf_counter() - started) / max(len(rows), 1)
        return [(result, share) for result in results]
    reference = "score_cases:bare_math_verify" if grader == "math-verify" else grader
    calls = [(reference, response, gold) for response, gold in zip(responses, golds, strict=True)]
    judged = []
    for outcome in pool.map("score_cases:grade", calls, time_limit=time_limit):
        done = outcome.kind is Kind.DONE and outcome.value is not None
        judged.append((Score(outcome.value) if done else Skip(outcome.kind.value), outcome.seconds))
    return judged


def tally(rows: Iterable[dict[str, Any]], judged: Iterable[tuple[Any, float]]) -> dict[str, Tally]:
    """Counts for each class, and for all rows under `all`. Rows that expect a Skip are left out."""
    counts = {"all": Tally()}
    for row, (result, seconds) in zip(rows, judged, strict=True):
        if row["expected"] == "skip":
            continue
        for name in ("all", row.get("kind") or row.get("class") or "unnamed"):
            counts.setdefault(name, Tally()).add(row["expected"], result, seconds)
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/tools/score_cases.py", description=__doc__.partition("\n")[0])
    parser.add_argument("path", type=Path, nargs="+", help="JSON lines with gold, response, expected")
    parser.add_argument("--grader", default="strict", help="strict, lenient, math-verify or module:function")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for one row")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--differences", action="store_true", help="list the rows that were judged otherwise")
    parser.add_argument("--totals", action="store_true", help="print the totals alone, not each class")
    parser.add_argument("--require-clean", action="store_true", help="exit with 1 when a wrong row is accepted")
    options = parser.parse_args(arguments)
    if options.grader not in ("strict", "lenient", "math-verify"):
        try:
            resolve(options.grader)
        except (ImportError, AttributeError, ValueError) as error:
            parser.error(
                f"--grader {options.grader}: expected strict, lenient, math-verify or module:function: {error}"
            )
    wrong_accepted = 0
    module = [options.grader.partition(":")[0]] if ":" in options.grader else []
    with Pool(options.workers, preload=("reward_fns.algebra", *module)) as pool:
        for path in options.path:
            try:
                rows = read_table(path)
            except (OSError, ValueError) as error:
                print(f"{path}: cannot be read: {error}", file=sys.stderr)
                return 2
            judged = judge(rows, options.grader, pool, options.time_limit)
            counts = tally(rows, judged)
            wrong_accepted += counts["all"].wrong_accepted
            print(f"{path.name}, {options.grader}: {len(rows)} rows")
            print(f"{'class':<34}precision   recall  right accepted, wrong accepted  skips   ms each")
            for name in ["all"] if options.totals else ["all", *sorted(set(counts) - {"all"})]:
                print(counts[name].line(name))
            for row, (result, _) in zip(rows, judged, strict=True):
                got = result.value if isinstance(result, Score) else "skip"
                if options.differences and row["expected"] != got:
                    gold, response = ascii(row["gold"])[:80], ascii(row["response"])[:90]
                    reason = f"{got} {result.reason}".strip()
                    print(f"  {row.get('id', '')} expected {row['expected']}, got {reason}: {gold} <- {response}")
    return 1 if options.require_clean and wrong_accepted else 0


if __name__ == "__main__":
    sys.exit(main())
