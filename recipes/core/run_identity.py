"""The name of the run a process belongs to, which every process of the run inherits through its environment."""

import hashlib
import os

VARIABLE = "VERL_DUETS_RUN"


def run_tag() -> str | None:
    """Twelve hex digits that name this process's run in a file name; None outside a run started by the launcher."""
    run = os.environ.get(VARIABLE)
    return tag_of(run) if run else None


def tag_of(run: str) -> str:
    """The twelve hex digits of a run's name."""
    return hashlib.sha256(run.encode()).hexdigest()[:12]
