"""The published case table, and how any grader fares on it: `python -m reward_fns.cases
their_module:their_compute_score`.

Each row of `tests/reward_fns/cases/*.jsonl` holds `id`, `gold`, `response`, `expected` (1.0, 0.0 or "skip"), `reason`
(the reason our strict rule gives), `why` (what the row is about), in the larger tables `kind` (its class) and, for
multiple choice, `style`. The table ships with the source tree and not with the wheel; point `load_cases` at the folder
when the package is installed elsewhere.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reward_fns.errors import ResultError

CASES = Path(__file__).parent.parent / "tests" / "reward_fns" / "cases"


@dataclass(frozen=True)
class Case:
    """One row: what a grader must say of `response` when the gold answer is `gold`."""

    id: str
    gold: Any
    response: str
    expected: float | str
    reason: str
    why: str
    style: str = ""
    kind: str = ""

    @property
    def family(self) -> str:
        """The file it stands in, such as right or hostile."""
        return self.id.rpartition("-")[0]


def load_cases(*families: str, folder: Path = CASES) -> list[Case]:
    """The rows of the named families, or of all.

    Raises:
        ResultError: the folder or a family is not there.
    """
    paths = [folder / f"{family}.jsonl" for family in families] or sorted(folder.glob("*.jsonl"))
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        raise ResultError(f"no case table in {folder}: missing {missing or '*.jsonl'}; it is part of the source tree")
    return list(_read(paths))


def _read(paths: list[Path]) -> Iterator[Case]:
    for path in paths:
        for line in path.read_text(encoding="utf-8").split("\n"):
            if line.strip():
                yield Case(**json.loads(line))


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or ":" not in arguments[0]:
        print("usage: python -m reward_fns.cases module:function (a verl compute_score)", file=sys.stderr)
        return 2
    from reward_fns import score_cases

    tables = [str(CASES / f"{family}.jsonl") for family in ("right", "wrong", "adversarial", "control", "gold")]
    return score_cases.main([*tables, "--grader", arguments[0], "--differences", "--require-clean"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
