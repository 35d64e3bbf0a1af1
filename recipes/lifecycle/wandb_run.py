"""One wandb run for all attempts of a training run: its id stands beside the checkpoints and returns with them."""

import os
import secrets
from pathlib import Path

from recipes.common import files

FILE = "wandb_run_id"


def keep_run_id(directory: Path, step: int) -> str:
    """Name the wandb run of this process and of every worker that inherits its environment.

    A run that resumes goes on with the id it had; one that starts over gets a new one. `WANDB_RUN_ID` and
    `WANDB_RESUME` win where the user has set them.

    Args:
        directory: where the run keeps its checkpoints.
        step: from which the run resumes, 0 for a new one.
    """
    path = directory / FILE
    known = path.read_text(encoding="utf-8").strip() if step > 0 and path.is_file() else ""
    run_id = os.environ.get("WANDB_RUN_ID") or known or secrets.token_hex(4)
    if run_id != known:
        files.write(path, f"{run_id}\n")
    os.environ["WANDB_RUN_ID"] = run_id
    os.environ.setdefault("WANDB_RESUME", "allow")
    return run_id
