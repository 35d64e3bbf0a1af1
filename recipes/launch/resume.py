"""What has to be true of a checkpoint folder and a metrics file before a run resumes from them.

verl writes a checkpoint step by step into ``global_step_N`` and names it in ``latest_checkpointed_iteration.txt`` at
the end, by a plain write; and its file logger starts every run with an empty file. Killed at the wrong moment, the
first leaves a tracker it cannot read, and the second loses the curve.
"""

import json
import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from recipes.core import state
from recipes.core.files import write
from recipes.errors import CheckpointError, StateError

TRACKER = "latest_checkpointed_iteration.txt"
STEP_FOLDER = re.compile(r"global_step_(\d+)")


def checkpoint_problem(folder: Path, state_file: str | None = None, per_node: int | None = None) -> str | None:
    """What keeps a step folder from being a complete checkpoint, None for one that is.

    It needs what verl writes last (the dataloader state), every rank's model, an end in each of verl's files (a zip
    archive has its directory there, which a cut takes away), and the whole of the recipe's own state.

    Args:
        per_node: ranks of one node in a run on several, each of which may have written to a disk of its own: the models
            of whole other nodes may then be elsewhere. None where every rank writes here.
    """
    if state_file is not None:
        try:
            state.check(folder / state_file)
        except StateError as error:
            return str(error).partition(": resume from")[0]
    if not (folder / "data.pt").is_file():
        return "data.pt is missing"
    if not (folder / "actor").is_dir():
        return "actor is missing"
    for role in (path for path in folder.iterdir() if path.is_dir()):
        shards = [re.fullmatch(r"model_world_size_(\d+)_rank_(\d+)\.pt", path.name) for path in role.iterdir()]
        present = [(int(match[1]), int(match[2])) for match in shards if match]
        if present and not _whole({rank for _, rank in present}, present[0][0], per_node):
            return f"{role.name} has {len(present)} of {present[0][0]} shards"
    for path in (folder / "data.pt", *folder.glob("*/*.pt")):
        if not zipfile.is_zipfile(path):
            return f"{path.relative_to(folder)} is damaged or cut"
    return None


def _whole(ranks: set[int], world: int, per_node: int | None) -> bool:
    """Whether these are all ranks, or all of each node that has any; verl numbers them node by node."""
    size = per_node or world
    return all(set(range(first, first + size)) <= ranks for first in {rank // size * size for rank in ranks})


def check_shards(folder: Path, world: int, rank: int | None) -> None:
    """Refuse a complete checkpoint that this run's actor cannot read.

    verl's FSDP checkpoints are read by as many devices as wrote them, into a model of the same adapters.

    Args:
        world: devices that train. rank: of the actor's adapters, 0 for none; None leaves them to a folder of adapters.

    Raises:
        CheckpointError: with what the checkpoint has and what the run has.
    """
    actor = folder / "actor"
    worlds = {
        int(m[1]) for path in actor.iterdir() if (m := re.fullmatch(r"model_world_size_(\d+)_rank_\d+\.pt", path.name))
    }
    if worlds and worlds != {world}:
        raise CheckpointError(
            f"{folder} was written by {max(worlds)} devices, and {world} train now: go on with as many, or start from "
            "its exported model in another trainer.default_local_dir"
        )
    if rank is not None and (actor / "fsdp_config.json").is_file():
        meta = actor / "lora_train_meta.json"
        stored = int(json.loads(meta.read_text(encoding="utf-8"))["r"]) if meta.is_file() else 0
        if stored != rank:
            raise CheckpointError(
                f"{folder} holds adapters of rank {stored} (0: none), and this run has rank {rank}: set "
                f"actor_rollout_ref.model.lora_rank={stored}, or another trainer.default_local_dir"
            )


def is_complete(folder: Path, state_file: str | None = None, per_node: int | None = None) -> bool:
    """Whether nothing is missing from a step folder."""
    return not checkpoint_problem(folder, state_file, per_node)


def complete_steps(directory: Path, state_file: str | None = None, per_node: int | None = None) -> list[int]:
    """Steps with a complete folder, ascending."""
    if not directory.is_dir():
        return []
    steps = [(int(match[1]), path) for path in directory.iterdir() if (match := STEP_FOLDER.fullmatch(path.name))]
    return sorted(step for step, path in steps if is_complete(path, state_file, per_node))


def resume_step(directory: Path, state_file: str | None = None, per_node: int | None = None) -> tuple[int, str | None]:
    """The step a run will resume from (0 for none), and a sentence when the tracker had to be mended.

    Args:
        directory: where the run keeps its checkpoints.
        state_file: the name of the recipe's own state in a step folder, None for a recipe without.
        per_node: as `checkpoint_problem` takes it.

    Raises:
        CheckpointError: step folders exist, the tracker names none of them and none is complete.
    """
    tracker = directory / TRACKER
    steps = complete_steps(directory, state_file, per_node)
    named = tracker.read_text(errors="replace").strip() if tracker.is_file() else None
    if named is not None and named.isdecimal() and int(named) in steps:
        return int(named), None
    if named is None and not steps:
        return 0, None
    folder = directory / f"global_step_{named}"
    reason = f" ({checkpoint_problem(folder, state_file, per_node)})" if folder.is_dir() else ""
    if not steps:
        raise CheckpointError(
            f"{tracker} says {named!r}, and {directory} holds no complete checkpoint{reason}: "
            "move the folder away to start over"
        )
    write(tracker, str(steps[-1]))
    return steps[-1], (
        f"{tracker} said {named!r}, which is no complete checkpoint{reason}; resuming from global_step_{steps[-1]}"
    )


def cut_back(records: Path, step: int) -> None:
    """Drop from a file of JSON lines what belongs to later steps, which a resumed run makes again, and a torn line.

    Args:
        records: one object with a ``step`` per line; a missing file stays missing.
        step: from which the run resumes, 0 for a new start.
    """
    if not records.is_file():
        return
    lines = []
    for line in records.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            if json.loads(line)["step"] <= step:
                lines.append(f"{line}\n")
        except (ValueError, KeyError, TypeError):
            continue
    write(records, "".join(lines))


def history_file(metrics: Path) -> Path:
    """Where the lines of earlier attempts wait while verl writes the current one."""
    return metrics.with_name(f"{metrics.name}.history")


def _lines(*paths: Path, last_step: float = math.inf) -> dict[int, dict]:
    """The records of files by step, up to a last one; what was logged of one step at several times becomes one record.

    verl logs a step again when it validates before it goes on, and after the last step. The later value stands.
    """
    records: dict[int, dict] = {}
    for path in filter(Path.is_file, paths):
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                record = json.loads(line)
                step, data = record["step"], dict(record["data"])
            except (ValueError, KeyError, TypeError):
                continue
            if step <= last_step:
                former = records.get(step, {"data": {}})
                records[step] = {**former, **record, "data": {**former["data"], **data}}
    return records


def _write_lines(path: Path, records: Mapping[int, dict]) -> None:
    write(path, "".join(f"{json.dumps(records[step])}\n" for step in sorted(records)))


def carry_metrics_over(metrics: Path, step: int, measured: Mapping[str, float] | None = None) -> bool:
    """Set aside the lines up to the step that is resumed, so that verl's logger can start its file anew.

    Args:
        measured: what the checkpoint knows of its step, for a run that was killed before it logged it.

    Returns:
        Whether that was needed.
    """
    earlier = _lines(history_file(metrics), metrics, last_step=step)
    needed = bool(measured) and step > 0 and step not in earlier
    if needed:
        earlier[step] = {"step": step, "data": dict(measured or {})}
    if earlier:
        _write_lines(history_file(metrics), earlier)
    else:
        history_file(metrics).unlink(missing_ok=True)
    return needed


def join_metrics(metrics: Path) -> None:
    """Put the earlier lines before the current ones; of a step that both have, every value is kept."""
    history = history_file(metrics)
    if not history.is_file() or not metrics.is_file():
        return
    _write_lines(metrics, _lines(history, metrics))
    history.unlink()


def restore_metrics(metrics: Path) -> None:
    """Put the lines that were set aside back when no new attempt is made after all."""
    history = history_file(metrics)
    if history.is_file():
        history.replace(metrics)
