"""An append-only record of paid-for work, so that a killed data run goes on without loss or repetition.

Each line is one JSON event. A line counts once its newline is on disk: a torn last line, which a kill in the middle of
a write leaves behind, is cut off on opening; damage anywhere else is refused.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class JournalError(ValueError):
    """The journal cannot be continued: other settings, damage, or another process writing it."""


class Journal:
    """Open for one process at a time; ``events`` holds what was recorded before, in order."""

    def __init__(self, path: Path, settings: dict[str, Any]):
        """Continue the journal at ``path`` or begin it.

        Args:
            settings: what the recorded work depends on; kept in the first line.

        Raises:
            JournalError: if the journal was made with other settings, is damaged, or is being written.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise JournalError(f"{path} is being written by another process: wait for it or end it") from error
        try:
            self._cut_torn_line()
            recorded = list(self._read())
            if recorded:
                self._check_settings(recorded[0].get("settings"), settings)
            else:
                self.append({"settings": settings})
        except BaseException:
            self._file.close()
            raise
        self.events = recorded[1:]

    def append(self, event: dict[str, Any]) -> None:
        """Record an event; it is on disk when this returns."""
        self._file.write(json.dumps(event, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Release the journal for other processes."""
        self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _cut_torn_line(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - (1 << 20))
            self._file.seek(start)
            newline = self._file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            self._file.truncate(end)

    def _read(self) -> Iterator[dict[str, Any]]:
        self._file.seek(0)
        for number, line in enumerate(self._file, start=1):
            try:
                event = json.loads(line.decode("utf-8", "surrogatepass"))
                if not isinstance(event, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                raise JournalError(
                    f"{self.path} is damaged in line {number} ({error}): restore or remove it"
                ) from error
            yield event

    def _check_settings(self, recorded: dict[str, Any] | None, wanted: dict[str, Any]) -> None:
        if not isinstance(recorded, dict):
            raise JournalError(f"{self.path} does not begin with its settings: it is no journal of this command")
        changed = sorted(key for key in recorded.keys() | wanted.keys() if recorded.get(key) != wanted.get(key))
        if changed:
            what = "; ".join(f"{key} was {recorded.get(key)!r}, now {wanted.get(key)!r}" for key in changed)
            raise JournalError(f"{self.path} was made with other settings ({what}): use another output folder")
