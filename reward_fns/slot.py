"""One slot of a pool: a thread that owns a worker process, feeds it and decides what became of each task.

A time limit counts what the task itself takes: CPU time of the worker, and time in which the worker sleeps. A worker
that is ready to run but gets no processor is starved; that is a fault of the machine, has a limit of its own, and is
told apart.
"""

import enum
import marshal
import os
import queue
import select
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from reward_fns.errors import PoolError
from reward_fns.fork_server import ForkServer, Worker
from reward_fns.forked_worker import HEADER, MAX_REPLY_BYTES
from reward_fns.worker_memory import is_loading

MAX_BATCH = 8
"""Quick tasks that one worker is sent together."""
BATCH_SECONDS = 0.02
"""Seconds of work, as far as can be foreseen, that a worker is sent together."""
POLL_SECONDS = 0.05
"""Seconds after which a slot looks at its worker though nothing was announced."""
MAX_BYTES_AHEAD = 32 << 10
"""Bytes sent beyond the first task: they fit a socket's buffer, so that neither side blocks in a send."""
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

    def end(self, outcome: Outcome) -> None:
        """Deliver the outcome, unless the caller has given up."""
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_result(outcome)


Tasks = queue.SimpleQueue[Task | None]
"""What waits for a worker; None tells one slot to stop."""


class Starved(TimeoutError):
    """The worker was ready to run and got no processor."""


class _Allowance:
    """What one task may still take of its worker.

    Args:
        started: when the task began, by the clock of time.monotonic.
    """

    def __init__(self, worker: Worker, time_limit: float, started: float):
        self._pid, self._limit, self._cpu_before = worker.pid, time_limit, worker.cpu_seconds
        self._gives_up = started + STARVATION_FACTOR * time_limit
        self._asleep, self._looked = 0.0, started

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


@dataclass(frozen=True)
class _Reply:
    """What a worker sent: the outcome of a task, whether it retires, when the task ended, its CPU seconds so far."""

    outcome: Outcome
    retires: bool
    ended: float
    cpu_seconds: float


class Slot(threading.Thread):
    """One worker process and the thread of the parent that feeds it.

    Quick tasks are sent several at a time: the worker goes from one to the next by itself, and the parent, which has no
    core of its own, wakes once for several replies. Each task has its own limit all the same, counted from the moment
    the one before it ended, and what a worker had not begun when it ended goes back into the queue.
    """

    def __init__(self, tasks: Tasks, fork_server: ForkServer, memory_limit: int, slots: int):
        super().__init__(name="reward_fns.pool", daemon=True)
        self._tasks = tasks
        self._fork_server = fork_server
        self._memory_limit = memory_limit
        self._slots = slots
        self._usual_seconds = 1.0
        self._worker: Worker | None = None
        self._received = bytearray()

    def run(self) -> None:
        while batch := self._take():
            ended = 0
            for task, outcome in zip(batch, self._perform(batch), strict=False):
                self._usual_seconds = 0.5 * (self._usual_seconds + outcome.seconds)
                if outcome.kind is Kind.KILLED and task.retries:
                    task.retries -= 1
                    break
                task.end(outcome)
                ended += 1
            self._put_back(batch[ended:])
            del batch, task, outcome
        self._end_worker()

    def close_copies(self) -> None:
        """After a fork: close the copies of the connection and the wake pipe."""
        if self._worker is not None:
            self._worker.disconnect()

    def _take(self) -> list[Task]:
        """The next tasks for this worker: as many as it does in a moment and leave enough for the other slots."""
        batch: list[Task] = []
        quick = int(BATCH_SECONDS / max(self._usual_seconds, BATCH_SECONDS / MAX_BATCH))
        most = max(1, min(quick, 1 + self._tasks.qsize() // (2 * self._slots)))
        room = MAX_BYTES_AHEAD
        while len(batch) < most:
            try:
                task = self._tasks.get(block=not batch)
            except queue.Empty:
                break
            if batch and (task is None or len(task.payload) > room):
                self._put_back([task])
                break
            if task is None:
                break
            if task.future.running() or task.future.set_running_or_notify_cancel():
                room -= len(task.payload) if batch else 0
                batch.append(task)
        return batch

    def _put_back(self, tasks: Sequence[Task | None]) -> None:
        for task in tasks:
            self._tasks.put(task)
        if tasks and self._fork_server.closed:
            give_up_waiting(self._tasks)  # who closed the pool may have looked for waiting tasks before the put

    def _perform(self, batch: list[Task]) -> Iterator[Outcome]:
        """The outcomes of the tasks in their order, up to the first that ends the worker."""
        try:
            worker = self._worker = self._worker or self._fork_server.fork(self._memory_limit)
        except (OSError, PoolError) as error:
            yield Outcome(Kind.POOL_DOWN, detail=str(error)[:500])
            return
        started = time.monotonic()
        for place, task in enumerate(batch):
            try:
                if place == 0:
                    _send(worker, batch)
                reply = self._reply(worker, _Allowance(worker, task.time_limit, started))
            except TimeoutError as error:
                late = Kind.NOT_LOADED if is_loading(worker.pid) else Kind.TIME_OUT
                self._end_worker()
                kind = Kind.STARVED if isinstance(error, Starved) else late
                yield Outcome(kind, detail=f"over {task.time_limit:g} s", seconds=time.monotonic() - started)
                return
            except (OSError, ValueError, EOFError, TypeError):
                yield self._cause_of_death(time.monotonic() - started)
                return
            worker.cpu_seconds = reply.cpu_seconds
            if reply.retires:
                self._end_worker()
            yield reply.outcome
            if reply.retires:
                return
            started = min(reply.ended, time.monotonic())

    def _reply(self, worker: Worker, allowance: _Allowance) -> _Reply:
        length, retires = HEADER.unpack(self._read(HEADER.size, worker, allowance, worker.wake_pipe))
        if length > MAX_REPLY_BYTES:
            raise ConnectionError("a reply longer than a worker may send")
        connection = worker.connection.fileno()
        reply = self._read(length, worker, allowance, connection)
        # marshal makes plain data and calls nothing.
        kind, value, seconds, ended, cpu = marshal.loads(reply)  # noqa: S302
        outcome = Outcome(Kind(kind), **{"value" if kind == Kind.DONE else "detail": value}, seconds=float(seconds))
        return _Reply(outcome, retires, float(ended), float(cpu))

    def _read(self, count: int, worker: Worker, allowance: _Allowance, signal_source: int) -> bytes:
        """The next bytes from a worker.

        Waits until there may be something to read: the wake pipe says so or, within a reply, the connection. Not for
        long at a time: a worker that hangs does not announce the replies that it sent before.
        """
        while len(self._received) < count:
            try:
                part = worker.connection.recv(1 << 16)
                if not part:
                    raise ConnectionError
                self._received += part
            except BlockingIOError:
                allowance.check()
                waiting = select.poll()
                waiting.register(signal_source, select.POLLIN)
                if waiting.poll(1000 * POLL_SECONDS) and signal_source == worker.wake_pipe:
                    os.read(worker.wake_pipe, 64)
        received = bytes(self._received[:count])
        del self._received[:count]
        return received

    def _cause_of_death(self, seconds: float) -> Outcome:
        ended_loading = self._worker is not None and is_loading(self._worker.pid)
        code = self._end_worker()
        if code is None or code in (-signal.SIGKILL, -signal.SIGTERM):
            return Outcome(Kind.KILLED, detail="the worker was killed from outside", seconds=seconds)
        kind = Kind.NOT_LOADED if ended_loading else Kind.CRASH
        return Outcome(kind, detail=f"the worker ended with exit code {code}", seconds=seconds)

    def _end_worker(self) -> int | None:
        self._received.clear()
        worker, self._worker = self._worker, None
        if worker is None:
            return None
        worker.disconnect()
        return self._fork_server.reap(worker)


def _send(worker: Worker, batch: list[Task]) -> None:
    last = len(batch) - 1
    parts = (HEADER.pack(len(t.payload), place < last) + t.payload for place, t in enumerate(batch))
    worker.connection.settimeout(STARVATION_FACTOR * batch[0].time_limit)
    try:
        worker.connection.sendall(b"".join(parts))
    except TimeoutError as error:
        raise Starved from error
    worker.connection.settimeout(0)


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
        else:
            task.end(Outcome(Kind.POOL_DOWN, detail="the pool was closed"))
