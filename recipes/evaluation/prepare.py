"""Prepare benchmarks: fetch each from its public source, check it, and keep it in a folder that needs no network.

    python -m recipes.evaluation.prepare math_500 gsm8k
    python -m recipes.evaluation.prepare all
    python -m recipes.evaluation.prepare svamp --from test.jsonl
    python -m recipes.evaluation.prepare all --from FOLDER
    python -m recipes.evaluation.prepare all --check

`--from` reads files that were fetched elsewhere, in the shape of the public source; in a folder they are called
NAME.jsonl, NAME.json or NAME.parquet. The output folder can be carried to a machine without network: evaluations
read it with data_dir=FOLDER. Each benchmark gets NAME.jsonl and NAME.manifest.json (source, revision, count, SHA-256,
faulty gold answers). Exits with 1 when a benchmark cannot be prepared or has changed since it was.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recipes.core import files
from recipes.core.files import read_rows
from recipes.errors import DataError, LaunchError
from recipes.evaluation.benchmarks import (
    benchmark_names,
    check_problems,
    describe,
    file_checksum,
    has_public_source,
    manifest_path,
    read_prepared,
    read_problems,
    read_shots,
    source_rows,
)
from recipes.evaluation.grade import faulty_golds

DEFAULT_FOLDER = Path("outputs/benchmarks")
_SUFFIXES = (".jsonl", ".json", ".parquet")
_IDENTITY = ("dataset", "config", "split", "revision", "url")


def prepare(name: str, folder: Path, source: Path | None = None, shots: Path | None = None) -> dict[str, Any]:
    """Prepare one benchmark; returns its manifest, which is written last and makes the other files valid.

    Args:
        folder: where prepared benchmarks are kept.
        source: file in the shape of the public source; None fetches it.
        shots: file of the benchmark's own worked examples, where it has them.

    Raises:
        LaunchError: the data cannot be had, or are not those of the benchmark; or they differ from what was prepared
            before from the same source.
    """
    card = describe(name)
    rows, origin = source_rows(card, str(source) if source else None)
    problems = read_problems(card, rows)
    check_problems(card, source or card["source"].get("url") or card["source"].get("dataset"), problems)
    examples = {}
    if "shots" in card and (source is None or shots is not None):
        examples = read_shots(card, read_rows(shots) if shots else None)
    faulty = faulty_golds(card["kind"], problems, card.get("grading", {}))
    before = read_prepared(folder, name)
    if before is not None and before[0] != problems:
        raise DataError(
            f"{name}: the source gives other problems than those prepared in {before[1]['prepared']}; results on "
            "the two do not compare. Choose another folder with --to, or delete the old files"
        )
    path, shots_path = folder / f"{name}.jsonl", folder / f"{name}.shots.jsonl"
    files.write_json_lines(path, (asdict(problem) for problem in problems))
    manifest = {"name": name, "count": len(problems), "sha256": file_checksum(path)}
    if source is None:
        # A file that somebody gives is identified by its checksum, not by the revision that it should be.
        manifest |= {key: card["source"][key] for key in _IDENTITY if card["source"].get(key) is not None}
    manifest |= {**origin, "faulty_golds": faulty}
    if examples:
        files.write_json_lines(shots_path, ({"group": group, "examples": e} for group, e in examples.items()))
        manifest["shots_sha256"] = file_checksum(shots_path)
    files.write_json(manifest_path(folder, name), manifest)
    return manifest


def verify(name: str, folder: Path) -> dict[str, Any]:
    """Check a prepared benchmark again: files, count and gold answers; returns its manifest.

    Raises:
        DataError: it is not there, its files changed, or its count is not the benchmark's.
    """
    card = describe(name)
    prepared = read_prepared(folder, name)
    if prepared is None:
        raise DataError(f"{name} is not prepared in {folder}")
    problems, manifest, _ = prepared
    check_problems(card, manifest["prepared"], problems)
    faulty = faulty_golds(card["kind"], problems, card.get("grading", {}))
    if faulty != manifest["faulty_golds"]:
        raise DataError(f"{name}: faulty gold answers are now {faulty}, when prepared {manifest['faulty_golds']}")
    return manifest


def _source_files(source: Path | None, name: str, several: bool) -> tuple[Path | None, Path | None]:
    """The file of a benchmark under --from, and the one of its worked examples."""
    if source is None:
        return None, None
    if source.is_file():
        if several:
            raise DataError(f"--from {source} is one file; for several benchmarks give a folder")
        return source, None
    for suffix in _SUFFIXES:
        path, shots = source / f"{name}{suffix}", source / f"{name}_shots{suffix}"
        if path.is_file():
            return path, shots if shots.is_file() else None
    raise DataError(f"no {name} with one of the suffixes {', '.join(_SUFFIXES)} in {source}")


def _skip_reason(name: str, options: argparse.Namespace) -> str | None:
    """Why a benchmark is left out when all are asked for."""
    source = describe(name)["source"]
    if options.check:
        return None if manifest_path(options.to, name).is_file() else f"not prepared in {options.to}"
    if options.source is not None:
        there = any((options.source / f"{name}{suffix}").is_file() for suffix in _SUFFIXES)
        return None if there else f"no such file in {options.source}"
    return None if has_public_source(source) else f"it has no public source: {source['note']}; give it with --from"


def _line(name: str, manifest: dict[str, Any]) -> str:
    pinned = manifest.get("revision") or manifest.get("source_sha256")
    where = manifest.get("path") or manifest.get("url") or manifest.get("dataset") or "a file"
    faulty = manifest["faulty_golds"]
    return (
        f"{name}: {manifest['count']} problems, sha256 {manifest['sha256'][:16]}, from {where} "
        f"({f'pinned {pinned[:16]}' if pinned else 'no revision is pinned: the checksum identifies it'}), "
        f"{len(faulty)} faulty gold answers" + (f": {', '.join(list(faulty)[:5])}" if faulty else "")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.evaluation.prepare", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help="benchmarks, or all")
    parser.add_argument("--from", dest="source", type=Path, help="file or folder to read instead of the public source")
    parser.add_argument("--to", type=Path, default=DEFAULT_FOLDER, help="folder to keep them in (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="check what is prepared already; fetches nothing")
    options = parser.parse_args(arguments)
    everything = options.names == ["all"]
    names = benchmark_names() if everything else options.names
    failed = 0
    for name in names:
        if everything and (reason := _skip_reason(name, options)):
            print(f"{name}: left out, {reason}")
            continue
        try:
            if options.check:
                manifest = verify(name, options.to)
            else:
                manifest = prepare(name, options.to, *_source_files(options.source, name, len(names) > 1))
        except LaunchError as error:
            print(f"prepare: {error}", file=sys.stderr)
            failed += 1
            continue
        print(_line(name, manifest))
    if failed:
        print(f"prepare: {failed} of {len(names)} benchmarks are not prepared", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
