"""Write files atomically: a reader, or a crash, finds the old content or the whole new one.

Pure, and below every room that writes files: `recipes.launch`, `recipes.evaluation`, every recipe.
"""

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
            value = json.loads(part)
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {number} is not JSON: {error}; one object per line is expected") from error
        for row in value if whole else [value]:
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


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to, which replaces `path` when the block ends without an exception.

    Missing parent folders are made. After an exception nothing is left behind and `path` is as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def model_digest(path: str | Path | None) -> str | None:
    """What tells a model folder's weights from others': sizes of its files, and 64 pieces of each; None for no folder.

    Whatever a stage computes by a model is kept under it, since a folder can hold other weights tomorrow.
    """
    folder = Path(path or "").expanduser()
    if not path or not (folder / "config.json").is_file():
        return None
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(one for one in folder.iterdir() if one.suffix in (".safetensors", ".bin")):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as weights:
            for place in range(64):
                weights.seek(size * place // 64)
                digest.update(weights.read(1 << 16))
    return digest.hexdigest()[:16]


def write(path: str | Path, content: str | bytes) -> None:
    """Replace a file by text (UTF-8) or bytes."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    with replacing(path) as partial:
        partial.write_bytes(data)


def write_json(path: str | Path, value: Any, *, indent: int | None = 2) -> None:
    """Replace a file by one JSON document.

    Raises:
        ValueError: a NaN or an infinity, which JSON does not have.
    """
    write(path, json_text(value, indent=indent) + "\n")


def write_json_lines(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Replace a file by one JSON object per line; returns their number."""
    count = 0
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json_text(row) + "\n")
            count += 1
    return count


def write_parquet(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a file by rows as parquet, the columns' types inferred from the rows."""
    import pyarrow
    import pyarrow.parquet

    with replacing(path) as partial:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), partial)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Serialise to JSON that is always valid UTF-8; a lone surrogate of a byte-level tokenizer is escaped.

    Raises:
        ValueError: a NaN or an infinity.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, indent=indent)
    return text


def _sync_folder(folder: Path) -> None:
    """Flush the new name to disk; some network file systems cannot, and the content is already there."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
