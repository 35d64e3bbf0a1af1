"""Append-only record files: one JSON object per line, each with a unique `key`, safe against a kill at any moment.

Every stage of the pipeline writes through `Journal`. Run the same command again and it continues: keys already on
disk are skipped, a half-written last line (the trace of a kill) is cut off and its work done again. Anything else
that does not parse is refused by file and line number, and passed over only when asked.
"""

import argparse
import fcntl
import glob
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from recipes.step_ppo import command

logger = logging.getLogger(__name__)

Record = dict[str, Any]


class CorruptJournal(ValueError):
    """A line that is no record, or a key that stands twice."""


class JournalMismatch(ValueError):
    """The file on disk was written with other options than the present command's."""


class JournalBusy(RuntimeError):
    """Another process is writing the same file."""


class Journal:
    """Records of one stage, keyed, append-only.

    Args:
        path: the jsonl file; made with its folder when missing.
        options: what the records depend on (model, temperature, seed ...). Kept in `<path>.options.json`; a later run
            with other options is refused, since the file would mix two experiments.
        skip_corrupt: pass over lines that do not parse, with a warning for each, instead of refusing the file.

    Raises:
        CorruptJournal, JournalMismatch, JournalBusy: see there.
    """

    def __init__(self, path: str | Path, *, options: Record | None = None, skip_corrupt: bool = False):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise JournalBusy(f"{self.path} is being written by another process: wait for it or end it") from error
            self._cut_torn_tail()
            self._keys = {record["key"] for record in read_records([self.path], skip_corrupt=skip_corrupt)}
            if options is not None:
                self._check_options(options)
        except BaseException:
            os.close(self._fd)
            raise

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def append(self, record: Record) -> None:
        """Write one record.

        Raises:
            ValueError: no string `key`, a key already written, or a value JSON cannot carry (NaN included).
        """
        key = record.get("key")
        if not isinstance(key, str):
            raise ValueError(f"a record needs a string 'key', found {key!r}")
        if key in self._keys:
            raise ValueError(f"{self.path} already holds a record {key!r}")
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        data = line.encode("utf-8", errors="surrogatepass")
        while data:
            data = data[os.write(self._fd, data) :]
        self._keys.add(key)

    def extend(self, records: Iterable[Record]) -> None:
        """Write several records."""
        for record in records:
            self.append(record)

    def close(self) -> None:
        """Bring the file to disk and release it."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _cut_torn_tail(self) -> None:
        size = os.fstat(self._fd).st_size
        keep = _last_newline(self._fd, size)
        if keep < size:
            logger.warning(
                "%s: cutting %d bytes of an unfinished last line; its work is done again", self.path, size - keep
            )
            os.ftruncate(self._fd, keep)

    def _check_options(self, options: Record) -> None:
        path = self.path.with_name(self.path.name + ".options.json")
        options = json.loads(json.dumps(options))
        if not path.exists():
            if self._keys:
                raise JournalMismatch(
                    f"{self.path} holds records but {path.name} is missing: choose another output or delete both"
                )
            write_atomically(path, json.dumps(options, indent=2, sort_keys=True))
            return
        written = json.loads(path.read_text())
        if written != options:
            differing = sorted(k for k in written.keys() | options.keys() if written.get(k) != options.get(k))
            detail = ", ".join(f"{k}: {written.get(k)!r} then, {options.get(k)!r} now" for k in differing)
            raise JournalMismatch(
                f"{self.path} was written with other options ({detail}): choose another output or delete it"
            )


def _last_newline(fd: int, size: int, block: int = 1 << 16) -> int:
    """Length of the file up to and including its last line break."""
    end = size
    while end > 0:
        start = max(0, end - block)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def write_atomically(path: str | Path, text: str) -> None:
    """Replace `path` by `text` in one step, so that a reader or a kill sees the old file or the new one."""
    path = Path(path)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with open(scratch, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def expand(patterns: Iterable[str | Path]) -> list[Path]:
    """Files named by paths and glob patterns, in order, shards (`x.3-of-20.jsonl`) by their number.

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


def read_records(paths: Iterable[str | Path], *, skip_corrupt: bool = False) -> Iterator[Record]:
    """Records of one or more finished files, in order.

    Raises:
        CorruptJournal: with file and line number, for a line that is no JSON object with a `key`, or for a key that was
            seen before (in any of the files). With `skip_corrupt` the former are passed over with a warning; a doubled
            key is always refused.
    """
    seen: dict[str, str] = {}
    for path in paths:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                where = f"{path}:{number}"
                problem = None
                try:
                    record = json.loads(line)
                except ValueError as error:
                    problem = str(error)
                else:
                    if not isinstance(record, dict) or not isinstance(record.get("key"), str):
                        problem = "not an object with a string 'key'"
                if problem is None and not line.endswith(b"\n"):
                    problem = "the last line has no line break"
                if problem is not None:
                    if not skip_corrupt:
                        raise CorruptJournal(
                            f"{where} is corrupt ({problem}): repair it, or pass --skip-corrupt to leave it out"
                        )
                    logger.warning("%s is corrupt (%s): left out", where, problem)
                    continue
                key = record["key"]
                if key in seen:
                    raise CorruptJournal(
                        f"{where} repeats the key {key!r} of {seen[key]}: the same records were given twice"
                    )
                seen[key] = where
                yield record


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.step_ppo.journal", description="Merge the shards of one stage into one file."
    )
    parser.add_argument("inputs", nargs="+", help="files or glob patterns")
    parser.add_argument("--output", required=True)
    parser.add_argument("--skip-corrupt", action="store_true", help="leave out lines that do not parse")
    args = parser.parse_args(argv)
    with Journal(args.output, skip_corrupt=args.skip_corrupt) as journal:
        for record in read_records(expand(args.inputs), skip_corrupt=args.skip_corrupt):
            if record["key"] not in journal:
                journal.append(record)
        print(f"{args.output}: {len(journal)} records")
    return 0


if __name__ == "__main__":
    command.run(main)
