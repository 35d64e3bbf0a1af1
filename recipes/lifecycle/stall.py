"""Say where a run stands still: which process is stopped, which actors have been at the same call for how long.

A hang kills nothing, so that nothing that watches for deaths sees it. Ray names a worker's process after the call that
it runs; a run whose calls stay the same for long is either at work on something large or waiting for something that
will not come, and how much processor time its processes took in that time tells which.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

REPORT_SECONDS = 600.0
STOPPED_SECONDS = 60.0
VARIABLE = "VERL_DUETS_STALL_SECONDS"

# The first that is found in a call's name tells the stage.
STAGES = (
    ("init_model", "init"),
    ("launch_server", "init"),
    ("load_checkpoint", "load"),
    ("save_checkpoint", "save"),
    ("update_weights", "sync"),
    ("compute_score", "reward"),
    ("generate_sequences", "rollout"),
    ("log_prob", "log-probs"),
    ("compute_values", "values"),
    ("update_critic", "update"),
    ("update_actor", "update"),
    ("validate", "validation"),
)


class Process(NamedTuple):
    """What is seen of one process: its title, whether it is stopped (SIGSTOP), its seconds of processor time."""

    title: str
    stopped: bool
    cpu: float


def limit_seconds() -> float:
    """Seconds without any change after which a run is ended, from the environment; infinite when it is not set.

    Raises:
        ValueError: the variable is no positive number.
    """
    value = os.environ.get(VARIABLE, "inf")
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if math.isnan(seconds) or seconds <= 0:
        raise ValueError(f"{VARIABLE} must be a positive number of seconds, got {value!r}")
    return seconds


@dataclass
class Stall:
    """Looks at the processes of a run again and again.

    Attributes:
        limit: seconds without a change after which :meth:`look` says that the run must end.
        report: seconds without a change after which :meth:`look` has something to tell, and again as often.
        stopped: seconds for which a process may be stopped.
    """

    limit: float = field(default_factory=limit_seconds)
    report: float = REPORT_SECONDS
    stopped: float = STOPPED_SECONDS
    _calls: frozenset[tuple[int, str]] = frozenset()
    _since: float = 0.0
    _told: float = 0.0
    _cpu: dict[int, float] = field(default_factory=dict)
    _stopped_since: dict[int, float] = field(default_factory=dict)

    def look(self, processes: Mapping[int, Process], now: float) -> tuple[str, bool]:
        """What is to be said ("" for nothing), and whether the run must end with it."""
        still = {pid for pid, process in processes.items() if process.stopped}
        self._stopped_since = {pid: self._stopped_since.get(pid, now) for pid in still}
        for pid, since in self._stopped_since.items():
            if now - since >= self.stopped:
                return f"{_name(processes[pid].title)} (pid {pid}) has been stopped for {now - since:.0f} s", True
        calls = frozenset((pid, process.title) for pid, process in processes.items() if _is_call(process.title))
        if calls != self._calls:
            self._calls, self._since, self._told = calls, now, now
            self._cpu = {pid: process.cpu for pid, process in processes.items()}
        waited = now - self._since
        if calls and waited >= self.limit:
            return f"{self._standing(processes, waited)} ({VARIABLE}={self.limit:g})", True
        if calls and now - self._told >= self.report:
            self._told = now
            return self._standing(processes, waited), False
        return "", False

    def _standing(self, processes: Mapping[int, Process], waited: float) -> str:
        lines = [
            f"{_name(title)} (pid {pid}, {processes[pid].cpu - self._cpu.get(pid, 0.0):.0f} s of CPU)"
            for pid, title in sorted(self._calls)
        ]
        engines = [
            f"{_name(process.title)} (pid {pid}, {process.cpu - self._cpu.get(pid, 0.0):.0f} s of CPU)"
            for pid, process in sorted(processes.items())
            if process.title.startswith("VLLM::")
        ]
        return f"nothing has changed for {waited:.0f} s in the stage {self._stage()}: {', '.join(lines + engines)}"

    def _stage(self) -> str:
        for mark, stage in STAGES:
            if any(mark in title for _, title in self._calls):
                return stage
        return "unknown"


def _is_call(title: str) -> bool:
    """Whether the title is one of an actor that is in a call; the task runner is in its one call from begin to end."""
    name = _name(title)
    return name.startswith("ray::") and "." in name and "TaskRunner" not in name


def _name(title: str) -> str:
    return title.split()[0] if title else "a process without a title"
