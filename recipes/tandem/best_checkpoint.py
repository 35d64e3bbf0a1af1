"""Keep a copy of the best checkpoint, out of reach of verl's rotation."""

import json
import os
import shutil
from pathlib import Path

from recipes.core import files

RECORD = "best.json"
FOLDER = "best"


def read_record(directory: Path) -> dict | None:
    """Read the record of `best`: {"step", "metric", "value"}; None when there is none.

    Raises:
        ValueError: the record is not what `keep_best` writes.
    """
    path = directory / FOLDER / RECORD
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {"step": int(record["step"]), "metric": str(record["metric"]), "value": float(record["value"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a record of the best checkpoint: {error}; move it away") from error


def keep_best(directory: Path, step: int, metric: str, value: float) -> bool:
    """Make `directory/best` a copy of `global_step_<step>` when `value` is the highest so far; returns whether it is.

    Files are hard-linked where the file system allows it, so that a copy costs nothing until verl deletes the original.
    A step without a checkpoint changes nothing, an equal value of an earlier step neither. A record of this step or a
    later one comes from before a resume, and does not count. A kill leaves the former `best`; or, between two renames,
    it as `best.former` beside the complete `best.partial`, and the next call puts that in place first.
    """
    source, target = directory / f"global_step_{step}", directory / FOLDER
    if not source.is_dir():
        return False
    partial, former = directory / f"{FOLDER}.partial", directory / f"{FOLDER}.former"
    if former.exists() and not target.exists():
        os.replace(partial if (partial / RECORD).is_file() else former, target)
    record = read_record(directory)
    if record is not None and record["step"] < step and record["metric"] == metric and record["value"] >= value:
        return False
    for leftover in (partial, former):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(source, partial / source.name, copy_function=_link_or_copy)
    files.write_json(partial / RECORD, {"step": step, "metric": metric, "value": value}, indent=None)
    if target.exists():
        os.replace(target, former)
    os.replace(partial, target)
    shutil.rmtree(former, ignore_errors=True)
    return True


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        return shutil.copy2(source, target)
    return target
