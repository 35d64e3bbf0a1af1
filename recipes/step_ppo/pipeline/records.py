"""Record files of the stages: one JSON object per line with a unique `key`, in one file or in shards.

Run a stage again and it goes on: what is on disk is kept, a half-written last line is cut off and its work done again.
"""

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from recipes.common.journal import Journal, Record, read_records
from recipes.errors import DataError

__all__ = ["Record", "expand", "open_journal", "read"]

KEY = "key"


def open_journal(path: str | Path, settings: dict[str, Any] | None = None, *, skip_corrupt: bool = False) -> Journal:
    """Open the record file that a stage writes; `settings` are what its records depend on."""
    return Journal(path, settings, key=KEY, skip_corrupt=skip_corrupt)


def read(paths: Iterable[str | Path], *fields: str, skip_corrupt: bool = False) -> Iterator[Record]:
    """Records of one or more finished files, in order; see `recipes.common.journal.read_records`.

    Args:
        fields: what every record has, so that the output of another stage is recognised.

    Raises:
        JournalError: damage. DataError: a record without one of `fields`.
    """
    paths = list(paths)
    for record in read_records(paths, key=KEY, skip_corrupt=skip_corrupt):
        if missing := [field for field in fields if field not in record]:
            raise DataError(
                f"record {record[KEY]!r} of {', '.join(map(str, paths))} has no {missing[0]!r}: is this the output of "
                "another stage?"
            )
        yield record


def expand(patterns: Iterable[str | Path]) -> list[Path]:
    """List the files named by paths and glob patterns, in order, shards (`x.3-of-20.jsonl`) by their number.

    Raises:
        FileNotFoundError: a path or pattern without a file.
    """
    paths: list[Path] = []
    for pattern in map(str, patterns):
        found = [pattern] if os.path.exists(pattern) else glob.glob(pattern)
        if not found:
            raise FileNotFoundError(f"no file matches {pattern}")
        paths.extend(Path(name) for name in sorted(found, key=_shard_order))
    return paths


def _shard_order(name: str) -> tuple[str, int, str]:
    folder, base = os.path.split(name)
    stem, _, number = base.partition("-of-")[0].rpartition(".")
    is_shard = "-of-" in base and number.isdigit()
    return (os.path.join(folder, stem), int(number), name) if is_shard else (name, -1, name)
