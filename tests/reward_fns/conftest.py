"""What the reward tests share: a pool of two workers, and the processes that belong to a parent."""

import sys
from pathlib import Path

import pytest

from reward_fns.pool import Pool

# Workers import the tasks of these tests by name, along the same path.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tools")]


def processes_of(parent: int) -> list[int]:
    """Process ids of the fork server and the workers that the pools of `parent` started, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if b"reward_fns.forked_worker" in arguments and str(parent).encode() in arguments and state != "Z":
            found.append(int(entry.name))
    return found


@pytest.fixture(name="processes_of")
def processes_of_fixture():
    return processes_of


@pytest.fixture
def pool():
    with Pool(workers=2, time_limit=3.0, preload=("pool_tasks",)) as made:
        yield made
