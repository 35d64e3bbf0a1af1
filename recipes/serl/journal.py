"""Record what became of every instruction as JSON lines, set back to the checkpoint when a run resumes.

Byte offsets, not lines, are what a checkpoint keeps of them: a step appends to three files of its own, and setting them
back must not depend on how much of the last line reached the disk.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from recipes.errors import JournalError

KINDS = ("filtered_data", "expired_data", "keep_train_data")
_NAME = re.compile(rf"(?:{'|'.join(KINDS)})_(\d+)\.jsonl")


class Journal:
    """The files `{kind}_{step}.jsonl` of one folder, the names and split of the original code.

    `filtered_data` holds every instruction dropped by a filter, `expired_data` those that passed and were left over,
    `keep_train_data` those trained on. A line holds `idx`, `prompt`, `step`, and whatever else the writer knows.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, kind: str, step: int, *, idx: int | None, prompt: str, **fields: Any) -> None:
        """Append one line; it reaches the file whole or, when the process dies in between, is cut off on resume."""
        if kind not in KINDS:
            raise ValueError(f"journal kind must be one of {', '.join(KINDS)}, got {kind!r}")
        record = {"idx": idx, "prompt": prompt, "step": step, **fields}
        # A lone surrogate in generated text must not end the run, so non-ASCII is escaped.
        line = json.dumps(record, ensure_ascii=True, allow_nan=False) + "\n"
        with open(self.folder / f"{kind}_{step}.jsonl", "ab", buffering=0) as file:
            file.write(line.encode("ascii"))

    def sync(self) -> dict[str, int]:
        """Force the files to disk and return the length of each in bytes, for the checkpoint."""
        offsets = {}
        for path in self._files():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                offsets[path.name] = os.fstat(file.fileno()).st_size
        return offsets

    def set_back(self, offsets: dict[str, int]) -> Path | None:
        """Set the files back to `offsets`; what is beyond them is moved into a subfolder, which is returned.

        Nothing is deleted: it may be the record of another run, or of steps that a killed run made after its last
        checkpoint. Raises `JournalError` when a file is missing or shorter than its offset.
        """
        for name, offset in offsets.items():
            path = self.folder / name
            size = path.stat().st_size if path.is_file() else None
            if size is None or size < offset:
                found = "is missing" if size is None else f"has {size} bytes"
                raise JournalError(
                    f"journal {path} {found}, the checkpoint was written when it had {offset}; "
                    "restore the file or start a new run with another journal folder"
                )
        beyond = [path for path in self._files() if path.stat().st_size > offsets.get(path.name, -1)]
        if not beyond:
            return None
        aside = self._new_folder()
        for path in beyond:
            if path.name in offsets:
                # The copy is whole before the original is cut.
                shutil.copy2(path, aside / path.name)
                os.truncate(path, offsets[path.name])
            else:
                path.rename(aside / path.name)
        return aside

    def read(self, kind: str, step: int) -> list[dict]:
        """The records of one file, empty when it does not exist."""
        path = self.folder / f"{kind}_{step}.jsonl"
        if not path.is_file():
            return []
        return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def _new_folder(self) -> Path:
        number = 1
        while True:
            folder = self.folder / f"set_aside_{number}"
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                return folder
