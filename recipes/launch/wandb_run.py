"""One wandb run for all attempts of a training run, its id beside the checkpoints; and the service that sends it."""

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import psutil

from recipes.core import files

FILE = "wandb_run_id"
SERVICE = "wandb-core"
"""The program that sends what was logged, a child of the process that logs."""


def store_run_id(directory: Path, step: int) -> str:
    """Name the wandb run of this process and of every worker that inherits its environment.

    A run that resumes goes on with the id it had; one that starts over gets a new one. `WANDB_RUN_ID` and
    `WANDB_RESUME` win where the user has set them.

    Args:
        directory: where the run keeps its checkpoints.
        step: from which the run resumes, 0 for a new one.
    """
    path = directory / FILE
    stored = path.read_text(encoding="utf-8").strip() if step > 0 and path.is_file() else ""
    run_id = os.environ.get("WANDB_RUN_ID") or stored or secrets.token_hex(4)
    if run_id != stored:
        files.write(path, f"{run_id}\n")
    os.environ["WANDB_RUN_ID"] = run_id
    os.environ.setdefault("WANDB_RESUME", "allow")
    return run_id


def services(processes: Iterable[psutil.Process]) -> dict[psutil.Process, list[psutil.Process]]:
    """Those of these processes that are wandb's service, each with the processes above it: it ends with its parent."""
    parents = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.name() == SERVICE:
                parents[process] = process.parents()
    return parents
