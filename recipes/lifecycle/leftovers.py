"""What a killed run leaves on a host, and how the next start removes it: our own things only.

Every process of a run carries the run's name in its environment (``VERL_DUETS_RUN``: host, driver pid, the driver's
start time, and a random part). A name whose driver no longer lives marks orphans. Shared-memory segments carry no
owner, so a run writes down, beside its record, which of them its processes on this host map (:func:`note_segments`).
A noted segment is removed when it is still the same file, this user owns it and no live process maps it. verl's weight
segments live too shortly to be noted; they are taken by name when a dead run of ours was running as they were made.
"""

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from recipes.common.files import write_json
from recipes.lifecycle import process_start
from recipes.upstream.run_identity import VARIABLE, tag_of

SHARED_MEMORY = Path("/dev/shm")
SOCKETS = Path("/tmp")
"""Where verl's weight syncs bind, under names that `recipes.upstream.weight_sync` ends with the run's tag."""
WEIGHT_SEGMENT = re.compile(r"verl_weights_[0-9a-f]{32}")
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
        boot: the start of the machine in which it began (`process_start.boot`).
        driver_started: seconds after that start at which the driver began.
        began: when the run did, in seconds since the epoch, as the times of files are.
    """

    name: str
    pid: int
    boot: str
    driver_started: float
    began: float

    def alive(self) -> bool:
        """Whether the driver still runs; a recycled pid does not count."""
        try:
            same = abs(process_start.seconds_after_boot(self.pid) - self.driver_started) < 0.5
            return same and self.boot == process_start.boot()
        except psutil.NoSuchProcess:
            return False


def records_folder() -> Path:
    """Where the runs of this user on this host are recorded."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "verl-duets" / "runs" / socket.gethostname()


def begin_run() -> RunRecord:
    """Name this process as the driver of a run, in its environment and in a record that outlives it."""
    started = process_start.seconds_after_boot(os.getpid())
    name = f"{socket.gethostname()}-{os.getpid()}-{int(started)}-{secrets.token_hex(4)}"
    record = RunRecord(name, os.getpid(), process_start.boot(), started, time.time())
    write_json(records_folder() / f"{name}.json", asdict(record))
    os.environ[VARIABLE] = name
    return record


def end_run(record: RunRecord) -> None:
    """Forget a run that has ended by itself."""
    (records_folder() / f"{record.name}.json").unlink(missing_ok=True)
    _noted(record).unlink(missing_ok=True)


def note_segments(record: RunRecord, processes: Iterable[psutil.Process]) -> None:
    """Write down the shared-memory files these processes of the run map, so that a later start can remove them."""
    mapped = _mapped_inodes(process.pid for process in processes)
    noted = _segments(record)
    found = {status.st_ino: path.name for path, status in _shared_memory() if status.st_ino in mapped}
    if found.keys() - noted.keys():
        write_json(_noted(record), noted | found)


class SegmentWatch:
    """Notes the segments of a run soon after they are made.

    A look lists the shared-memory files and reads who maps them only while one of them is new, so it is cheap enough
    for several in a second: what is killed between making a segment and the next look leaves it behind.

    Args:
        record: of the run.
        looks: at a new file until it is taken for somebody else's; whoever makes one maps it a moment later.
    """

    def __init__(self, record: RunRecord, looks: int = 5) -> None:
        self._record, self._looks = record, looks
        self._left: dict[int, int] = {}

    def look(self) -> None:
        left = {status.st_ino: self._left.get(status.st_ino, self._looks) for _, status in _shared_memory()}
        if any(left.values()):
            note_segments(self._record, processes_of({self._record.name}))
        self._left = {inode: max(0, looks - 1) for inode, looks in left.items()}


def _noted(record: RunRecord) -> Path:
    return records_folder() / f"{record.name}.segments"


def _segments(record: RunRecord) -> dict[int, str]:
    try:
        return {int(inode): name for inode, name in json.loads(_noted(record).read_text()).items()}
    except (FileNotFoundError, ValueError, AttributeError):
        return {}


def _shared_memory() -> list[tuple[Path, os.stat_result]]:
    """The shared-memory files of this user."""
    files = []
    for path in SHARED_MEMORY.iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if status.st_uid == os.getuid():
                files.append((path, status))
    return files


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
    """Processes of this user whose environment names one of these runs, this process left out."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        if _run_of(process) in names:
            found.append(process)
    return found


def _run_of(process: psutil.Process) -> str | None:
    """The run in a process's environment, None where there is none or it cannot be read."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError):
        return process.environ().get(VARIABLE)
    return None


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


def _mapped_inodes(pids: Iterable[int] | None = None) -> set[int]:
    """Inodes of the shared-memory files that these processes map; all processes with None."""
    if pids is None:
        pids = psutil.pids()
    inodes: set[int] = set()
    for pid in pids:
        # A process may end between the listing and the reading (ESRCH), or belong to somebody else.
        with contextlib.suppress(OSError):
            inodes.update(int(inode) for inode in _MAPPING.findall(Path(f"/proc/{pid}/maps").read_text()))
    return inodes


def _orphaned_files(dead: list[RunRecord]) -> list[Path]:
    oldest = min(record.began for record in dead) - CLOCK_TICK
    noted = {segment for record in dead for segment in _segments(record).items()}
    candidates = [
        (path, status)
        for path, status in _shared_memory()
        if (status.st_ino, path.name) in noted or (WEIGHT_SEGMENT.fullmatch(path.name) and status.st_mtime >= oldest)
    ]
    mapped = _mapped_inodes() if candidates else set()
    return [path for path, status in candidates if status.st_ino not in mapped]


def remove_shared_memory(record: RunRecord) -> list[str]:
    """Unlink the segments and sockets a run of ours left behind, once its processes are gone."""
    return _unlink(_orphaned_files([record])) + _remove_sockets(record)


def _unlink(files: list[Path]) -> list[str]:
    for path in files:
        path.unlink(missing_ok=True)
    return [f"shared memory {path.name}" for path in files]


def remove_leftovers() -> list[str]:
    """End the processes and remove the shared memory of runs that were killed; one line for each thing removed."""
    dead = dead_runs()
    if not dead:
        return []
    removed = []
    orphans = processes_of({record.name for record in dead})
    if orphans:
        for record in dead:
            note_segments(record, [process for process in orphans if _run_of(process) == record.name])
        stop_processes(orphans)
        removed.append(f"{len(orphans)} processes of a run that was killed")
    removed += _unlink(_orphaned_files(dead))
    for record in dead:
        removed += _remove_sockets(record)
        end_run(record)
    return removed


def _remove_sockets(record: RunRecord) -> list[str]:
    """Unlink what a weight sync that was killed left of its socket."""
    found = sorted(SOCKETS.glob(f"rl-colocate-zmq-*-{tag_of(record.name)}.sock"))
    for path in found:
        with contextlib.suppress(OSError):
            path.unlink()
    return [f"socket {path.name}" for path in found]
