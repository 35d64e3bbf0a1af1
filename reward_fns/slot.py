"""One slot of a pool: a thread that owns a worker process, feeds it and decides what became of each task.

A time limit counts what the task itself takes: CPU time of the worker, and time in which the worker sleeps. A worker
that is ready to run but gets no processor is starved; that is a fault of the machine, has a limit of its own, and is
told apart.
"""

import enum
import marshal
import queue
import select
import signal
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from reward_fns.errors import PoolError
from reward_fns.fork_server import ForkServer, Worker
from reward_fns.forked_worker import HEADER, MAX_REPLY_BYTES
from reward_fns.worker_memory import is_loading

POLL_SECONDS = 0.05
"""Seconds after which a slot looks at what a task has used, though no reply came."""
STARVATION_FACTOR = 30
"""A task is given up as starved after this many times its limit of wall clock."""


class Kind(enum.StrEnum):
    """What became of a task; `not_loaded` is one that timed out or crashed in `worker_memory.loading`."""

    DONE = "done"
    RAISED = "raised"
    TIME_OUT = "time_out"
    STARVED = "starved"
    MEMORY = "memory"
    CRASH = "crash"
    NOT_LOADED = "not_loaded"
    KILLED = "killed"
    POOL_DOWN = "pool_down"


@dataclass(frozen=True)
class Outcome:
    """The end of one task: `value` when it is done, `detail` when it is not, `seconds` of wall clock in the worker."""

    kind: Kind
    value: Any = None
    detail: str = ""
    seconds: float = 0.0


@dataclass
class Task:
    """A call that waits for a worker."""

    payload: bytes
    time_limit: float
    retries: int
    future: Future[Outcome]


Tasks = queue.SimpleQueue[Task | None]
"""What waits for a worker; None tells one slot to stop."""


class Starved(TimeoutError):
    """The worker was ready to run and got no processor."""


class _Allowance:
    """What one task may still take of its worker."""

    def __init__(self, worker: Worker, time_limit: float):
        self._pid, self._limit, self._cpu_before = worker.pid, time_limit, cpu_seconds(worker.pid)
        self._asleep, self._looked = 0.0, time.monotonic()
        self._gives_up = self._looked + STARVATION_FACTOR * time_limit

    def check(self) -> None:
        """Raise TimeoutError when the task has used up its limit, Starved when it waited too long for a processor."""
        now = time.monotonic()
        if is_asleep(self._pid):
            # What lies between two looks counts for at most two of them: this thread may have been starved itself.
            self._asleep += min(now - self._looked, 2 * POLL_SECONDS)
        self._looked = now
        if cpu_seconds(self._pid) - self._cpu_before + self._asleep >= self._limit:
            raise TimeoutError
        if now >= self._gives_up:
            raise Starved


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far; 0 when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # Linux: the clock of a process, see clock_getcpuclockid(3)
    except OSError:
        return 0.0


def is_asleep(pid: int) -> bool:
    """Whether a process sleeps of its own accord; one that was stopped, or waits for a disk, does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] == b"S"
    except OSError:
        return False


class Slot(threading.Thread):
    """One worker process and the thread of the parent that feeds it."""

    def __init__(self, tasks: Tasks, fork_server: ForkServer, memory_limit: int):
        super().__init__(name="reward_fns.pool", daemon=True)
        self._tasks = tasks
        self._fork_server = fork_server
        self._memory_limit = memory_limit
        self._worker: Worker | None = None

    def run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if task.future.set_running_or_notify_cancel():
                outcome = self._perform(task)
                while outcome.kind is Kind.KILLED and task.retries:
                    task.retries -= 1
                    outcome = self._perform(task)
                task.future.set_result(outcome)
                del outcome
            del task
        self._end_worker()

    def close_copies(self) -> None:
        """After a fork: close the copy of the connection."""
        if self._worker is not None:
            self._worker.connection.close()

    def _perform(self, task: Task) -> Outcome:
        try:
            worker = self._worker = self._worker or self._fork_server.fork(self._memory_limit)
        except (OSError, PoolError) as error:
            return Outcome(Kind.POOL_DOWN, detail=str(error)[:500])
        started = time.monotonic()
        try:
            _send(worker, task)
            return self._reply(worker, _Allowance(worker, task.time_limit))
        except TimeoutError as error:
            late = Kind.NOT_LOADED if is_loading(worker.pid) else Kind.TIME_OUT
            self._end_worker()
            kind = Kind.STARVED if isinstance(error, Starved) else late
            return Outcome(kind, detail=f"over {task.time_limit:g} s", seconds=time.monotonic() - started)
        except (OSError, ValueError, EOFError, TypeError):
            return self._cause_of_death(time.monotonic() - started)

    def _reply(self, worker: Worker, allowance: _Allowance) -> Outcome:
        length, retires = HEADER.unpack(_receive(worker, HEADER.size, allowance))
        if length > MAX_REPLY_BYTES:
            raise ConnectionError("a reply longer than a worker may send")
        # marshal makes plain data and calls nothing.
        kind, value, seconds = marshal.loads(_receive(worker, length, allowance))  # noqa: S302
        outcome = Outcome(Kind(kind), **{"value" if kind == Kind.DONE else "detail": value}, seconds=float(seconds))
        if retires:
            self._end_worker()
        return outcome

    def _cause_of_death(self, seconds: float) -> Outcome:
        ended_loading = self._worker is not None and is_loading(self._worker.pid)
        code = self._end_worker()
        if code is None or code in (-signal.SIGKILL, -signal.SIGTERM):
            return Outcome(Kind.KILLED, detail="the worker was killed from outside", seconds=seconds)
        kind = Kind.NOT_LOADED if ended_loading else Kind.CRASH
        return Outcome(kind, detail=f"the worker ended with exit code {code}", seconds=seconds)

    def _end_worker(self) -> int | None:
        worker, self._worker = self._worker, None
        if worker is None:
            return None
        worker.connection.close()
        return self._fork_server.reap(worker)


def _send(worker: Worker, task: Task) -> None:
    worker.connection.settimeout(STARVATION_FACTOR * task.time_limit)
    try:
        worker.connection.sendall(HEADER.pack(len(task.payload), False) + task.payload)
    except TimeoutError as error:
        raise Starved from error
    worker.connection.settimeout(0)


def _receive(worker: Worker, count: int, allowance: _Allowance) -> bytes:
    received, waiting = bytearray(), select.poll()
    waiting.register(worker.connection, select.POLLIN)
    while True:
        if waiting.poll(1000 * POLL_SECONDS):
            part = worker.connection.recv(count - len(received))
            if not part:
                raise ConnectionError
            received += part
            if len(received) == count:
                return bytes(received)
        allowance.check()


def give_up_waiting(tasks: Tasks) -> None:
    """End what waits in the queue of a closed pool; what tells the slots to stop stays in it."""
    waiting = []
    while not tasks.empty():
        try:
            waiting.append(tasks.get_nowait())
        except queue.Empty:
            break
    for task in waiting:
        if task is None:
            tasks.put(None)
        elif task.future.set_running_or_notify_cancel():
            task.future.set_result(Outcome(Kind.POOL_DOWN, detail="the pool was closed"))
