"""Append-only JSON-lines record of finished work, so that a killed run goes on without loss or repetition.

The first line holds the settings on which the work depends; every other line is one record. A record counts once its
line break is written: a torn last line, which a kill in the middle of a write leaves behind, is cut off on opening and
its work done again. Damage anywhere else is refused with file and line number.
"""

import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from recipes.core.files import json_text
from recipes.errors import JournalError

logger = logging.getLogger(__name__)

Record = dict[str, Any]


class Journal:
    """The record file of one command, open for one process at a time.

    Args:
        path: the file; made with its folder when missing.
        settings: what the records depend on (model, prompts, sampling, ...), JSON values only. A file made with other
            settings is refused, since it would mix two experiments; None writes and compares nothing.
        key: the field that names a record, unique in the file; None when records have no name.
        sync: bring each appended record to disk before going on (`record`, for work that is paid for), or leave that to
            the system until the journal is closed (`close`). A killed process loses nothing either way.

    Raises:
        JournalError: other settings, damage, a repeated key, or another process writing the file.
    """

    def __init__(
        self,
        path: str | Path,
        settings: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        sync: Literal["record", "close"] = "close",
    ):
        self.path = Path(path)
        self._key, self._sync = key, sync
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise JournalError(f"{path} is being written by another process: wait for it or end it") from error
            self._cut_torn_line()
            self._read_keys()
            if settings is not None:
                self._check_settings(json.loads(json.dumps(dict(settings))))
        except BaseException:
            os.close(self._fd)
            raise

    def __contains__(self, key: str) -> bool:
        """Whether a record of this name is written."""
        return key in self._keys

    def __len__(self) -> int:
        return self._count

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def records(self) -> Iterator[Record]:
        """Read the records from the file, in order."""
        return read_records([self.path], key=self._key)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record; see :meth:`extend`."""
        self.extend([record])

    def extend(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write several records in one piece.

        Raises:
            ValueError: no name, a name already written, or a value JSON cannot carry (NaN included). None is written.
            OSError: the disk is full, for instance; what was written of these records is taken back.
        """
        records, keys = list(records), set()
        for record in records if self._key else ():
            name = record.get(self._key)
            if not isinstance(name, str):
                raise ValueError(f"a record needs a text {self._key!r}, found {name!r}")
            if name in self._keys or name in keys:
                raise ValueError(f"{self.path} already holds a record {name!r}")
            keys.add(name)
        self._write("".join(json_text(dict(record)) + "\n" for record in records).encode())
        self._keys |= keys
        self._count += len(records)

    def close(self) -> None:
        """Bring the file to disk and release it."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read_keys(self) -> None:
        self._keys: set[str] = set()
        self._count = 0
        for record in self.records():
            self._count += 1
            if self._key is not None:
                self._keys.add(record[self._key])

    def _write(self, data: bytes) -> None:
        size = os.fstat(self._fd).st_size
        try:
            rest = data
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            if self._sync == "record":
                os.fsync(self._fd)
        except BaseException:
            os.ftruncate(self._fd, size)
            raise

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        keep = _last_line_break(self._fd, size)
        if keep < size:
            logger.warning(
                "%s: cutting %d bytes of an unfinished last line; its work is done again", self.path, size - keep
            )
            os.ftruncate(self._fd, keep)

    def _check_settings(self, settings: Record) -> None:
        if os.fstat(self._fd).st_size == 0:
            self._write((json_text({"settings": settings}) + "\n").encode())
            return
        former = read_settings(self.path)
        if former is None:
            raise JournalError(
                f"{self.path} does not begin with its settings, so that it is not known what made its records: choose "
                "another output, or remove it"
            )
        differing = sorted(name for name in former.keys() | settings.keys() if former.get(name) != settings.get(name))
        if differing:
            detail = ", ".join(f"{name} was {_short(former, name)}, now {_short(settings, name)}" for name in differing)
            raise JournalError(
                f"{self.path} was made with other settings ({detail}): choose another output, or remove it"
            )


def read_settings(path: str | Path) -> Record | None:
    """The settings in the first line of a journal, None when it has none."""
    with open(path, "rb") as file:
        try:
            first = json.loads(file.readline() or b"null")
        except ValueError:
            return None
    return first["settings"] if _is_header(first) else None


def read_records(paths: Iterable[str | Path], *, key: str | None = None, torn_end: bool = False) -> Iterator[Record]:
    """Records of one or more finished files, in order; lines with settings are left out.

    Args:
        key: the field that names a record, unique over all files; None when records have no name.
        torn_end: take a last line without a line break when it parses and pass over it when not, for files that another
            program wrote or a kill ended. Without it such a line is refused.

    Raises:
        JournalError: with file and line number, for a line that is no record or repeats a key.
    """
    seen: dict[str, str] = {}
    for path in paths:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                where = f"{path}, line {number}"
                unended = not line.endswith(b"\n")
                record, problem = _parse(line, key)
                if problem and torn_end and unended:
                    continue
                if unended and not torn_end:
                    problem = problem or "the last line has no line break"
                if problem:
                    raise JournalError(f"{where} is corrupt ({problem}): restore the file or take the line out")
                # Journals that were joined by hand have more than one; where records have no name, it may be one.
                if _is_header(record) and (number == 1 or key is not None):
                    continue
                if key is not None:
                    name = record[key]
                    if name in seen:
                        raise JournalError(
                            f"{where} repeats the key {name!r} of {seen[name]}: the same records were given twice"
                        )
                    seen[name] = where
                yield record


def _parse(line: bytes, key: str | None) -> tuple[Record, str]:
    """Return a line's record and an empty text, or what is wrong with the line."""
    try:
        record = json.loads(line)
    except ValueError as error:
        return {}, str(error)
    if not isinstance(record, dict):
        return {}, "not an object"
    if key is not None and not _is_header(record) and not isinstance(record.get(key), str):
        return {}, f"not an object with a text {key!r}"
    return record, ""


def _is_header(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.keys() == {"settings"} and isinstance(entry["settings"], dict)


def _short(settings: Record, name: str) -> str:
    text = repr(settings.get(name))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _last_line_break(fd: int, size: int, block: int = 1 << 16) -> int:
    """Length of the file up to and including its last line break."""
    end = size
    while end > 0:
        start = max(0, end - block)
        position = os.pread(fd, end - start, start).rfind(b"\n")
        if position >= 0:
            return start + position + 1
        end = start
    return 0
