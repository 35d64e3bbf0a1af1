"""Read rows of data from parquet and JSON files, with one sentence about what is wrong with a file."""

import json
from pathlib import Path
from typing import Any

from recipes.errors import DataError, MissingFileError

Row = dict[str, Any]


def read_rows(path: str | Path, text_column: str | None = None) -> list[Row]:
    """Read a .parquet file, or a .jsonl, .json or .txt file with a JSON list or one JSON object per line.

    Args:
        text_column: a column in which every row must have a text that is not blank.

    Raises:
        MissingFileError, DataError: with file and line.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist: give a parquet, jsonl or json file")
    if path.suffix == ".parquet":
        rows = _read_parquet(path)
    elif path.suffix in (".jsonl", ".json", ".txt"):
        rows = _read_json(path)
    else:
        raise DataError(f"{path} must end in .parquet, .jsonl, .json or .txt")
    if not rows:
        raise DataError(f"{path} has no rows")
    for number, row in enumerate(rows if text_column else (), start=1):
        if text_column not in row:
            raise DataError(
                f"{path} row {number} has no column {text_column!r}; it has {', '.join(map(str, row)) or 'none'}"
            )
        if not isinstance(row[text_column], str) or not row[text_column].strip():
            raise DataError(f"{path} row {number}: {text_column!r} must be a text, found {row[text_column]!r:.80}")
    return rows


def _read_json(path: Path) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error}") from error
    whole = path.suffix == ".json" and text.lstrip().startswith("[")
    rows = []
    for number, part in enumerate([text] if whole else text.split("\n"), start=1):
        if not part.strip():
            continue
        try:
            found = json.loads(part)
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {number} is not JSON: {error}; one object per line is expected") from error
        for row in found if whole else [found]:
            if not isinstance(row, dict):
                raise DataError(f"{path} line {number} must be a JSON object, found {type(row).__name__}")
            rows.append(row)
    return rows


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable parquet file: {str(error).splitlines()[0]}") from error
