"""Record files of the stages: one JSON object per line with a unique `key`, in one file or in shards.

Run a stage again and it goes on: what is on disk is kept, a half-written last line is cut off and its work done again.
"""

import glob
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from recipes.core.journal import Journal, Record, read_records
from recipes.core.settings import Count, CountOrZero, Finite, check_value
from recipes.errors import ConfigError, DataError

KEY = "key"


class Response(TypedDict):
    """A cleaned response, from behind `Thought 1:`, and whether it is right."""

    text: str
    correct: bool


class Trajectories(TypedDict):
    """Of `collect` and `teach`: the responses to one question."""

    id: str
    responses: list[Response]


class State(TypedDict):
    """Of `states`: a prefix of a response, and how the response goes on."""

    id: str
    response_index: CountOrZero
    step: CountOrZero
    kind: str
    prefix: str
    rest: str


class Value(TypedDict):
    """Of `complete`: how many of a state's completions are right; None where the state is left out."""

    id: str
    response_index: CountOrZero
    prefix_length: CountOrZero
    value: CountOrZero | None
    num_completions: Count


class StepScores(TypedDict):
    """One response's steps: kind, P(good) and class probabilities of each; `report` alone reads the last."""

    response_index: CountOrZero
    kinds: list[str]
    step_scores: list[Finite]
    probabilities: NotRequired[list[list[Finite]]]


class Scores(TypedDict):
    """Of `score`: the responses to one question that could be read."""

    id: str
    scores: list[StepScores]


class PairRecord(TypedDict):
    """Of `pairs`: the texts of a preference pair."""

    id: str
    kind: str
    chosen: str
    reject: str


class OfQuestion(TypedDict):
    """Of any stage: the question that a record belongs to."""

    id: str


def open_journal(path: str | Path, settings: dict[str, Any] | None = None) -> Journal:
    """Open the record file that a stage writes; `settings` are what its records depend on.

    Raises:
        JournalError: other settings, or damage. DataError: a setting that is not finite.
    """
    for name, value in (settings or {}).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise DataError(f"--{name.replace('_', '-')} must be a finite number, found {value}")
    return Journal(path, settings, key=KEY)


def read(paths: Iterable[str | Path], kind: Any = None) -> Iterator[Record]:
    """Records of one or more finished files, in order; see `recipes.core.journal.read_records`.

    Args:
        kind: what every record must be, one of the classes above, so that the output of another stage, or of another
            program, is recognised; None takes any record. Further fields are allowed.

    Raises:
        JournalError: damage. DataError: a record that is not of `kind`.
    """
    paths = list(paths)
    for record in read_records(paths, key=KEY):
        if kind is not None:
            try:
                check_value(kind, record, f"record {record[KEY]!r}")
            except ConfigError as error:
                files = ", ".join(map(str, paths))
                raise DataError(f"{files}: {error!s:.300}: is this the output of another stage?") from error
        yield record


def expand(patterns: Iterable[str | Path]) -> list[Path]:
    """List the files named by paths and glob patterns, in order, shards (`x.3-of-20.jsonl`) by their number.

    Raises:
        FileNotFoundError: a path or pattern without a file.
    """
    paths: list[Path] = []
    for pattern in map(str, patterns):
        names = [pattern] if os.path.exists(pattern) else glob.glob(pattern)
        if not names:
            raise FileNotFoundError(f"no file matches {pattern}")
        paths.extend(Path(name) for name in sorted(names, key=_shard_order))
    return paths


def _shard_order(name: str) -> tuple[str, int, str]:
    folder, base = os.path.split(name)
    stem, _, number = base.partition("-of-")[0].rpartition(".")
    is_shard = "-of-" in base and number.isdigit()
    return (os.path.join(folder, stem), int(number), name) if is_shard else (name, -1, name)
