"""Prepared benchmarks: problems and a manifest of each, in a folder that is read without network."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.core import files
from recipes.core.rows import read_rows
from recipes.errors import DataError
from recipes.evaluation.problem import Problem
from recipes.evaluation.sources import file_checksum


@dataclass(frozen=True)
class Prepared:
    """A prepared benchmark.

    Attributes:
        manifest: where it came from, its number of problems, the checksums of its files, and the problems whose gold
            answer is faulty.
        shots: worked examples by group, where the benchmark brings its own.
    """

    problems: tuple[Problem, ...]
    manifest: Mapping[str, Any]
    shots: Mapping[str, tuple[str, ...]]


def write(
    folder: Path,
    name: str,
    problems: Sequence[Problem],
    shots: Mapping[str, Sequence[str]],
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """Write a benchmark's problems and worked examples, then its manifest, which makes them valid; returns it.

    Args:
        origin: what identifies the source: id and revision, or the checksum of a file.
    """
    path = folder / f"{name}.jsonl"
    files.write_json_lines(path, (asdict(problem) for problem in problems))
    manifest = {"name": name, "count": len(problems), "sha256": file_checksum(path), **origin}
    if shots:
        shots_path = folder / f"{name}.shots.jsonl"
        files.write_json_lines(
            shots_path, ({"group": group, "examples": list(found)} for group, found in shots.items())
        )
        manifest["shots_sha256"] = file_checksum(shots_path)
    files.write_json(manifest_path(folder, name), manifest)
    return manifest


def manifest_path(folder: Path, name: str) -> Path:
    """Where the manifest of a benchmark is."""
    return folder / f"{name}.manifest.json"


def read(folder: Path, name: str) -> Prepared | None:
    """A benchmark prepared in `folder`, or None.

    Raises:
        DataError: its files are not those that the manifest describes.
    """
    if not manifest_path(folder, name).is_file():
        return None
    manifest = json.loads(manifest_path(folder, name).read_text(encoding="utf-8"))
    path = folder / f"{name}.jsonl"
    rows = _verified(path, manifest["sha256"])
    problems = tuple(
        Problem(**{**row, "messages": tuple(row["messages"]), "options": tuple(row["options"])}) for row in rows
    )
    shots = {}
    if "shots_sha256" in manifest:
        examples = _verified(folder / f"{name}.shots.jsonl", manifest["shots_sha256"])
        shots = {row["group"]: tuple(row["examples"]) for row in examples}
    return Prepared(problems, {"prepared": str(path), **manifest}, shots)


def _verified(path: Path, checksum: str) -> list[dict[str, Any]]:
    if not path.is_file() or file_checksum(path) != checksum:
        raise DataError(
            f"{path} is not the file that its manifest describes; prepare it again with "
            "`python -m recipes.evaluation.prepare`"
        )
    return read_rows(path)
