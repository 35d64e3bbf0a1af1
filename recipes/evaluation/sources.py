"""Where the rows of a benchmark come from: a file, a pinned address, or the hub."""

import urllib.error
import urllib.request
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from recipes.core.rows import Row, read_rows
from recipes.errors import DataError

_TIMEOUT_SECONDS = 120
Rows = list[Row]


def file_checksum(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    return sha256(path.read_bytes()).hexdigest()


def has_public_source(source: Mapping[str, Any]) -> bool:
    """Whether the rows can be fetched by anyone; other benchmarks must be given as a file."""
    return bool(source.get("dataset") or source.get("url"))


def fetch(source: Mapping[str, Any]) -> tuple[Rows, str | None]:
    """Rows of a public source, and the SHA-256 of the file they came in (None from the hub, which has a revision).

    Args:
        source: `url` of one file, or `dataset`, `config`, `split` (one or a list, joined in order) and `revision` of
            the hub.

    Raises:
        DataError: it cannot be fetched or read.
    """
    if source.get("url"):
        return _from_url(source["url"])
    splits = source["split"] if isinstance(source["split"], list) else [source["split"]]
    return [row for split in splits for row in _from_hub({**source, "split": split})], None


def _from_url(url: str) -> tuple[Rows, str]:
    suffix = PurePosixPath(url).suffix
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"rows{suffix if suffix in ('.json', '.parquet') else '.jsonl'}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
                path.write_bytes(answer.read())
        except (OSError, urllib.error.URLError) as error:
            raise DataError(
                f"{url} cannot be fetched: {error}; on a machine without network fetch it elsewhere and give the file "
                "(`python -m recipes.evaluation.prepare NAME --from FILE`, or data.NAME=FILE)"
            ) from error
        return read_rows(path), file_checksum(path)


def _from_hub(source: Mapping[str, Any]) -> Rows:
    import datasets

    try:
        return list(
            datasets.load_dataset(
                source["dataset"], source.get("config"), split=source["split"], revision=source.get("revision")
            )
        )
    except Exception as error:
        # The hub client raises many kinds; without the data there is nothing to run, and the way out is the same.
        raise DataError(
            f"{source['dataset']} ({source['split']}) cannot be loaded: {type(error).__name__}: {error}; on a machine "
            "without network give a local copy (`python -m recipes.evaluation.prepare NAME --from FILE`, or "
            "data.NAME=FILE)"
        ) from error
