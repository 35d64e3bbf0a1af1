"""Read questions, and what is known of them, from any jsonl or parquet file with a question column."""

import json
from pathlib import Path

from recipes.errors import DataError, MissingFileError


def read_rows(path: str | Path, question_key: str) -> list[dict]:
    """The rows of a .jsonl, .json (lines) or .parquet file, in order, each with a text under `question_key`.

    Raises `MissingFileError` or `DataError` with the file, the line and what was expected.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist: give a jsonl or parquet file with a column {question_key!r}")
    if path.suffix == ".parquet":
        rows = _read_parquet(path)
    elif path.suffix in (".jsonl", ".json"):
        rows = _read_lines(path)
    else:
        raise DataError(f"{path} must end in .jsonl, .json or .parquet")
    if not rows:
        raise DataError(f"{path} has no rows")
    for number, row in enumerate(rows, start=1):
        if question_key not in row:
            raise DataError(
                f"{path} row {number} has no column {question_key!r}; it has {', '.join(map(str, row)) or 'none'}. "
                "Name the column that holds the question"
            )
        if not isinstance(row[question_key], str) or not row[question_key].strip():
            raise DataError(f"{path} row {number}: {question_key!r} must be a text, found {row[question_key]!r:.80}")
    return rows


def _read_lines(path: Path) -> list[dict]:
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {number} is not JSON: {error}; one object per line is expected") from error
        if not isinstance(row, dict):
            raise DataError(f"{path} line {number} must be a JSON object, found {type(row).__name__}")
        rows.append(row)
    return rows


def _read_parquet(path: Path) -> list[dict]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable parquet file: {str(error).splitlines()[0]}") from error
