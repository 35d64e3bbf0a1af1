"""What has to be true of a checkpoint folder and a metrics file before a run resumes from them.

verl writes a checkpoint step by step into ``global_step_N`` and names it in ``latest_checkpointed_iteration.txt`` at
the end, by a plain write; and its file logger starts every run with an empty file. Killed at the wrong moment, the
first leaves a tracker it cannot read, and the second loses the curve.
"""

import json
import re
from pathlib import Path

from recipes.common.files import write
from recipes.errors import CheckpointError

TRACKER = "latest_checkpointed_iteration.txt"
STEP_FOLDER = re.compile(r"global_step_(\d+)")


def is_complete(folder: Path) -> bool:
    """Whether a step folder holds what verl writes last (the dataloader state) and every rank's model."""
    if not (folder / "data.pt").is_file() or (folder / "data.pt").stat().st_size == 0:
        return False
    for role in (path for path in folder.iterdir() if path.is_dir()):
        shards = [re.fullmatch(r"model_world_size_(\d+)_rank_(\d+)\.pt", path.name) for path in role.iterdir()]
        found = [(int(match[1]), int(match[2])) for match in shards if match]
        if found and len(found) != found[0][0]:
            return False
    return (folder / "actor").is_dir()


def complete_steps(directory: Path) -> list[int]:
    """Steps with a complete folder, ascending."""
    if not directory.is_dir():
        return []
    steps = [(int(match[1]), path) for path in directory.iterdir() if (match := STEP_FOLDER.fullmatch(path.name))]
    return sorted(step for step, path in steps if is_complete(path))


def resume_step(directory: Path) -> tuple[int, str | None]:
    """The step a run will resume from (0 for none), and a sentence when the tracker had to be mended.

    Raises:
        CheckpointError: step folders exist, the tracker names none of them and none is complete.
    """
    tracker = directory / TRACKER
    steps = complete_steps(directory)
    named = tracker.read_text().strip() if tracker.is_file() else None
    if named is not None and named.isdigit() and int(named) in steps:
        return int(named), None
    if named is None and not steps:
        return 0, None
    if not steps:
        raise CheckpointError(
            f"{tracker} says {named!r}, and {directory} holds no complete checkpoint: "
            "move the folder away to start over"
        )
    write(tracker, str(steps[-1]))
    latest = steps[-1]
    return latest, f"{tracker} said {named!r}, which is no complete checkpoint; resuming from global_step_{latest}"


def history_file(metrics: Path) -> Path:
    """Where the lines of earlier attempts wait while verl writes the current one."""
    return metrics.with_name(f"{metrics.name}.history")


def _lines(path: Path, last_step: int) -> dict[int, str]:
    """The lines of a file by step, up to a last one; what was logged of one step at several times becomes one line."""
    lines: dict[int, str] = {}
    if not path.is_file():
        return lines
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
            step = record["step"]
            if step in lines:
                line = json.dumps({**record, "data": {**json.loads(lines[step])["data"], **record["data"]}})
        except (ValueError, KeyError, TypeError):
            continue
        if step <= last_step:
            lines[step] = line
    return lines


def carry_metrics_over(metrics: Path, step: int) -> None:
    """Set aside the lines up to the step that is resumed, so that verl's logger can start its file anew."""
    kept = _lines(history_file(metrics), step) | _lines(metrics, step)
    if kept:
        write(history_file(metrics), "".join(f"{kept[key]}\n" for key in sorted(kept)))
    else:
        history_file(metrics).unlink(missing_ok=True)


def join_metrics(metrics: Path) -> None:
    """Put the earlier lines before the current ones; the current win where both have a step."""
    history = history_file(metrics)
    if not history.is_file() or not metrics.is_file():
        return
    last = 2**62
    joined = _lines(history, last) | _lines(metrics, last)
    write(metrics, "".join(f"{joined[key]}\n" for key in sorted(joined)))
    history.unlink()


def restore_metrics(metrics: Path) -> None:
    """Put the lines that were set aside back when no new attempt is made after all."""
    history = history_file(metrics)
    if history.is_file():
        history.replace(metrics)
