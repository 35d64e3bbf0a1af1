"""Folders of the offline trainings: from which checkpoint to go on, and whether there is anything left to do."""

import json
from pathlib import Path

from recipes.step_ppo.journal import write_atomically

FINISHED = "finished.json"


def last_complete_checkpoint(output: str) -> str | None:
    """The newest whole checkpoint of `transformers.Trainer`: the trainer's state is the last file it writes."""
    found = [path for path in Path(output).glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
    return str(max(found, key=lambda path: int(path.name.partition("-")[2]))) if found else None


def is_finished(output: str, options: dict) -> bool:
    """Whether an earlier run of the same command got to its end.

    Raises:
        SystemExit: it did, with other options.
    """
    path = Path(output) / FINISHED
    if not path.is_file():
        return False
    written = json.loads(path.read_text(encoding="utf-8"))["options"]
    if written != json.loads(json.dumps(options)):
        differing = sorted(name for name in written.keys() | options.keys() if written.get(name) != options.get(name))
        raise SystemExit(f"{output} was trained with other options ({', '.join(differing)}): choose another output")
    return True


def mark_finished(output: str, options: dict, statistics: dict) -> None:
    """Say that the folder is whole. Nothing may be written to it afterwards."""
    content = json.dumps({"statistics": statistics, "options": options}, indent=2)
    write_atomically(Path(output) / FINISHED, content)
