"""End a run whose worker exited unexpectedly, for which verl itself would wait without end.

verl waits without a limit in several places (the replay buffer polls until enough groups are finished, a weight sync
waits for an engine), so a killed agent loop, server or engine can leave the driver silent. This thread of the driver
watches the actors of its own Ray job on every node, and the vLLM engine processes on this host, and notes the shared
memory those map, which a kill would leave behind. What stands still without a death is told by
:mod:`recipes.lifecycle.stall`. After a death it gives verl a moment to end by itself, then says which process died and
ends the run with a non-zero exit code.
"""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import psutil

from recipes.lifecycle import leftovers, process_start
from recipes.lifecycle.stall import Process, Stall

POLL_SECONDS = 3.0
LOOK_SECONDS = 0.2
GRACE_SECONDS = 20.0
EXIT_CODE = 1
ENGINE_TITLES = ("VLLM::EngineCore", "VLLM::Worker")
SERVER = re.compile(r"ray::\w*HttpServer")
SPAWNED = "multiprocessing.spawn"
HELPER_SECONDS = 60.0


@dataclass
class Watchdog:
    """Watches one run until :meth:`stop`; ``died`` is the sentence that ended it, if one did."""

    run: leftovers.RunRecord
    poll: float = POLL_SECONDS
    grace: float = GRACE_SECONDS
    died: str | None = None
    stall: Stall = field(default_factory=Stall)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _segments: leftovers.SegmentWatch = field(init=False)
    _engines: dict[int, str] = field(default_factory=dict)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._segments = leftovers.SegmentWatch(self.run)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="verl-duets-watchdog", daemon=True)
        self._thread.start()
        threading.Thread(target=self._note, name="verl-duets-segments", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _note(self) -> None:
        """Note segments until the run ends: in a thread of its own, since Ray answers nobody once its head is gone."""
        while not self._stopped.wait(LOOK_SECONDS):
            with contextlib.suppress(OSError):
                self._segments.look()

    def _watch(self) -> None:
        while not self._stopped.wait(self.poll):
            try:
                processes = leftovers.processes_of({self.run.name})
                self.died = dead_actor() or self._dead_engine(processes) or self._standing(processes)
            except Exception as error:  # whatever Ray raises when its head is busy: a lost look must not end the watch
                print(
                    f"watchdog: a look failed, the next is in {self.poll:g} s: {error!r}", file=sys.stderr, flush=True
                )
            if self.died:
                break
        else:
            return
        if self._stopped.wait(self.grace):
            return
        print(
            f"\nThe run has ended: {self.died}. "
            "Its last complete checkpoint is kept; the same command resumes from it.",
            file=sys.stderr,
            flush=True,
        )
        leftovers.stop_processes(leftovers.processes_of({self.run.name}))
        leftovers.remove_shared_memory(self.run)
        leftovers.end_run(self.run)
        os._exit(EXIT_CODE)

    def _standing(self, processes: list[psutil.Process]) -> str | None:
        """A sentence about a run that must end because it stands still; one that may go on is only told of."""
        seen = {}
        for process in processes:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    stopped = process.status() == psutil.STATUS_STOPPED
                    seen[process.pid] = Process(" ".join(process.cmdline()), stopped, times.user + times.system)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        sentence, must_end = self.stall.look(seen, time.monotonic())
        if sentence and not must_end:
            print(f"\n{sentence}", file=sys.stderr, flush=True)
        return sentence if must_end else None

    def _dead_engine(self, processes: list[psutil.Process]) -> str | None:
        found = {}
        for process in processes:
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    age = process_start.age(process.pid)
                    found[process.pid] = Seen(process.ppid(), " ".join(process.cmdline()), age)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        alive = engines(found)
        gone = {pid: name for pid, name in self._engines.items() if pid not in alive}
        self._engines = alive
        if gone:
            pid, name = next(iter(gone.items()))
            return f"the rollout engine process {name} (pid {pid}) died"
        return None


class Seen(NamedTuple):
    """A process: its parent's pid, its command line or title, its age in seconds."""

    parent: int
    title: str
    age: float


def engines(processes: Mapping[int, Seen]) -> dict[int, str]:
    """vLLM's engine processes among those of a run, by pid, with their names.

    vLLM names them by setproctitle, which does nothing in a process whose first environment variable was set again
    before. One without a title is known by its parent, a server of verl or an engine, and by its age, since those also
    spawn helpers that end soon.
    """

    def children(parents: Collection[int]) -> set[int]:
        return {
            pid
            for pid, process in processes.items()
            if process.parent in parents and SPAWNED in process.title and process.age > HELPER_SECONDS
        }

    titled = {pid: seen.title.split()[0] for pid, seen in processes.items() if seen.title.startswith(ENGINE_TITLES)}
    servers = [pid for pid, seen in processes.items() if SERVER.match(seen.title)]
    cores = children(servers) | {pid for pid, name in titled.items() if name.startswith(ENGINE_TITLES[0])}
    workers = children(cores)
    return dict.fromkeys(cores, ENGINE_TITLES[0]) | dict.fromkeys(workers, ENGINE_TITLES[1]) | titled


def dead_actor() -> str | None:
    """A sentence about an actor of this job that exited unexpectedly, None while all runs or before Ray is up."""
    import ray
    from ray._private import state
    from ray.core.generated.common_pb2 import ActorDiedErrorContext

    if not ray.is_initialized():
        return None
    job = ray.get_runtime_context().get_job_id()
    for actor in state.actors(job_id=ray.JobID.from_hex(job), actor_state_name="DEAD").values():
        cause = actor["DeathCause"]
        context = cause.actor_died_error_context
        unexpected = context.reason in (ActorDiedErrorContext.WORKER_DIED, ActorDiedErrorContext.NODE_DIED)
        if unexpected or cause.HasField("oom_context"):
            reason = cause.oom_context.error_message or context.error_message
            what = f"actor {actor['ActorClassName']} {actor['Name']}".strip()
            first = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
            return f"{what} (pid {actor['Pid']} on {actor['Address']['IPAddress']}) died: {first}"
    return None


def wait_until_gone(record: leftovers.RunRecord, seconds: float) -> list[psutil.Process]:
    """Processes of a finished run that are still there after ``seconds``; what they map until then is noted."""
    deadline = time.monotonic() + seconds
    remaining = leftovers.processes_of({record.name})
    while remaining and time.monotonic() < deadline:
        leftovers.note_segments(record, remaining)
        time.sleep(0.2)
        remaining = leftovers.processes_of({record.name})
    return remaining
