"""What a killed run leaves on a host, and how the next start removes it: our own things only.

Every process of a run carries the run's name in its environment (``VERL_DUETS_RUN``). A name whose driver no longer
lives marks orphans and the sockets of weight syncs. Shared memory carries no owner. verl's weight segments are taken by
name when a dead run of ours was running as they were made, this user owns them and no process maps them. vLLM's
(``psm_*``) have Python's default name, so they may be another program's and are told, not removed.
"""

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from recipes.core.files import write_json
from recipes.core.requests import VARIABLE, tag_of

SHARED_MEMORY = Path("/dev/shm")
SOCKETS = Path("/tmp")
"""Where verl's weight syncs bind, under names that `recipes.core.weight_sync` ends with the run's tag."""
WEIGHT_SEGMENT = "verl_weights_*"
UNNAMED_SEGMENT = "psm_*"
CLOCK_TICK = 0.01
"""Seconds by which the time of a file may lag the clock at its making: the kernel stamps files once per tick."""
# A line of /proc/PID/maps: address, permissions, offset, device, inode, path; a deleted name keeps its inode.
_MAPPING = re.compile(r"^\S+ \S+ \S+ \S+ (\d+) +/dev/shm/", re.MULTILINE)


@dataclass(frozen=True)
class RunRecord:
    """A run of this host.

    Attributes:
        name: of the run, in the environment of its processes.
        pid: of the driver.
        driver_started: seconds after the machine's start at which the driver began.
        began: when the run did, in seconds since the epoch, as the times of files are.
    """

    name: str
    pid: int
    driver_started: float
    began: float

    def alive(self) -> bool:
        """Whether the driver still runs; a recycled pid does not count."""
        try:
            return abs(_seconds_after_boot(self.pid) - self.driver_started) < 2.0
        except psutil.NoSuchProcess:
            return False


def _seconds_after_boot(pid: int) -> float:
    """When a process began; both of psutil's times move when somebody sets the clock, their difference does not."""
    booted = psutil.boot_time()
    return psutil.Process(pid).create_time() - booted


def records_folder() -> Path:
    """Where the runs of this user on this host are recorded."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "verl-duets" / "runs" / socket.gethostname()


def begin_run() -> RunRecord:
    """Name this process as the driver of a run, in its environment and in a record that outlives it."""
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    record = RunRecord(name, os.getpid(), _seconds_after_boot(os.getpid()), time.time())
    write_json(records_folder() / f"{name}.json", asdict(record))
    os.environ[VARIABLE] = name
    return record


def end_run(record: RunRecord) -> None:
    """Forget a run that has ended by itself."""
    (records_folder() / f"{record.name}.json").unlink(missing_ok=True)


def dead_runs() -> list[RunRecord]:
    """Recorded runs whose driver is gone; an unreadable record is dropped."""
    dead = []
    for path in sorted(records_folder().glob("*.json")):
        try:
            record = RunRecord(**json.loads(path.read_text()))
        except (ValueError, TypeError):
            path.unlink(missing_ok=True)
            continue
        if not record.alive():
            dead.append(record)
    return dead


def processes_of(names: set[str]) -> list[psutil.Process]:
    """Processes whose environment names one of these runs, and what they started; this process left out.

    Ray's agents write their titles over their environment: they are known by their parent alone.
    """
    every, of_runs = {}, set()
    for process in psutil.process_iter(["ppid"]):
        every[process.pid] = process
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            if process.environ().get(VARIABLE) in names:
                of_runs.add(process.pid)
    while started := {pid for pid, process in every.items() if process.info["ppid"] in of_runs} - of_runs:
        of_runs |= started
    return [every[pid] for pid in sorted(of_runs - {os.getpid()})]


def wait_until_gone(record: RunRecord, seconds: float) -> list[psutil.Process]:
    """Processes of a finished run that are still there after ``seconds``."""
    deadline = time.monotonic() + seconds
    while (remaining := processes_of({record.name})) and time.monotonic() < deadline:
        time.sleep(0.2)
    return remaining


def stop_processes(processes: list[psutil.Process], grace: float = 5.0) -> None:
    """SIGTERM, then SIGKILL after ``grace`` seconds."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, stubborn = psutil.wait_procs(processes, timeout=grace)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=grace)


def remove_leftovers() -> list[str]:
    """End the processes and remove the weight segments of runs that were killed; one line for each thing removed."""
    dead = dead_runs()
    removed = []
    if orphans := processes_of({record.name for record in dead}):
        stop_processes(orphans)
        removed.append(f"{len(orphans)} processes of a run that was killed")
    for record in dead:
        removed += remove_shared_memory(record)
        end_run(record)
    return removed


def remove_shared_memory(record: RunRecord) -> list[str]:
    """Unlink the weight segments and sockets a run of ours left behind, once its processes are gone."""
    segments = unmapped(WEIGHT_SEGMENT, since=record.began - CLOCK_TICK)
    sockets = sorted(SOCKETS.glob(f"rl-colocate-zmq-*-{tag_of(record.name)}.sock"))
    for path in (*segments, *sockets):
        with contextlib.suppress(OSError):
            path.unlink()
    return [f"shared memory {path.name}" for path in segments] + [f"socket {path.name}" for path in sockets]


def unmapped(pattern: str, since: float = 0.0) -> list[Path]:
    """This user's shared-memory files of this name that were written since then and that no process maps."""
    inodes = {}
    for path in sorted(SHARED_MEMORY.glob(pattern)):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if status.st_uid == os.getuid() and status.st_mtime >= since:
                inodes[path] = status.st_ino
    mapped: set[int] = set()
    for pid in psutil.pids() if inodes else ():
        # A process may end between the listing and the reading (ESRCH), or belong to somebody else.
        with contextlib.suppress(OSError):
            mapped.update(int(inode) for inode in _MAPPING.findall(Path(f"/proc/{pid}/maps").read_text()))
    return [path for path, inode in inodes.items() if inode not in mapped]


def unowned_line() -> str | None:
    """A line that names shared memory which nobody maps and which may be another program's, and how to remove it."""
    segments = unmapped(UNNAMED_SEGMENT)
    if not segments:
        return None
    return (
        f"no process maps {len(segments)} shared-memory files of yours, left by a killed engine or another program; "
        f"if you need none of them: rm {' '.join(map(str, segments))}"
    )
