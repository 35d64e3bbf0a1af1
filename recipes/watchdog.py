"""End a run whose worker has died, when verl itself would wait for it for ever.

verl waits without a limit in several places (the replay buffer polls until enough groups are finished, a weight sync
waits for an engine), so a killed agent loop, server or engine can leave the driver silent. This thread of the driver
watches the actors of its own Ray job on every node, and the vLLM engine processes on this host, and notes the shared
memory those map, which a kill would leave behind. After a death it gives
verl a moment to end by itself, then says which process died and ends the run with a non-zero exit code.
"""

import os
import sys
import threading
import time
from dataclasses import dataclass, field

import psutil

from recipes import leftovers

POLL_SECONDS = 3.0
GRACE_SECONDS = 20.0
EXIT_CODE = 1
ENGINE_TITLES = ("VLLM::EngineCore", "VLLM::Worker")


@dataclass
class Watchdog:
    """Watches one run until :meth:`stop`; ``died`` is the sentence that ended it, if one did."""

    run: leftovers.RunRecord
    poll: float = POLL_SECONDS
    grace: float = GRACE_SECONDS
    died: str | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)
    _engines: dict[int, str] = field(default_factory=dict)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="verl-duets-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self.poll):
            processes = leftovers.processes_of({self.run.name})
            leftovers.note_segments(self.run, processes)
            self.died = dead_actor() or self._dead_engine(processes)
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

    def _dead_engine(self, processes: list[psutil.Process]) -> str | None:
        alive = {}
        for process in processes:
            try:
                title = " ".join(process.cmdline())
                if title.startswith(ENGINE_TITLES) and process.status() != psutil.STATUS_ZOMBIE:
                    alive[process.pid] = title
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        gone = {pid: title for pid, title in self._engines.items() if pid not in alive}
        self._engines = alive
        if gone:
            pid, title = next(iter(gone.items()))
            return f"the rollout engine process {title.split()[0]} (pid {pid}) died"
        return None


def dead_actor() -> str | None:
    """A sentence about an actor of this job that died unasked, None while all is well or Ray is not up yet."""
    import ray
    from ray._private import state
    from ray.core.generated.common_pb2 import ActorDiedErrorContext

    if not ray.is_initialized():
        return None
    job = ray.get_runtime_context().get_job_id()
    for actor in state.actors(job_id=ray.JobID.from_hex(job), actor_state_name="DEAD").values():
        cause = actor["DeathCause"]
        context = cause.actor_died_error_context
        unasked = context.reason in (ActorDiedErrorContext.WORKER_DIED, ActorDiedErrorContext.NODE_DIED)
        if unasked or cause.HasField("oom_context"):
            reason = cause.oom_context.error_message or context.error_message
            what = f"actor {actor['ActorClassName']} {actor['Name']}".strip()
            first = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
            return f"{what} (pid {actor['Pid']} on {actor['Address']['IPAddress']}) died: {first}"
    return None


def wait_until_gone(record: leftovers.RunRecord, seconds: float) -> list[psutil.Process]:
    """Processes of a finished run that are still there after ``seconds``."""
    deadline = time.monotonic() + seconds
    remaining = leftovers.processes_of({record.name})
    while remaining and time.monotonic() < deadline:
        time.sleep(0.2)
        remaining = leftovers.processes_of({record.name})
    return remaining
