"""Run untrusted work in processes that can be killed: a wall-clock and a memory limit for each task.

A pool belongs to the process that uses it. It may be called from any number of threads and event loops; after a fork
the child starts a pool of its own at first use; nothing outlives the parent, even one killed by SIGKILL. A worker that
dies costs its own task only. Why not a ready-made pool: README.md, "The pool".
"""

import asyncio
import concurrent.futures
import enum
import marshal
import os
import pickle
import queue
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from reward_fns.errors import OptionError, PoolError
from reward_fns.fork_server import ForkServer
from reward_fns.forked_worker import HEADER, MAX_REPLY_BYTES, resolve

MOST_AT_ONCE = 8
"""Quick tasks that one worker is sent together."""
MOMENT = 0.02
"""Seconds of work, as far as can be foreseen, that a worker is sent together."""
LONGEST_WAIT = 0.05
"""Seconds after which a slot looks for replies that were not announced."""
MOST_BYTES_AHEAD = 32 << 10
"""Bytes sent beyond the first task: they fit a socket's buffer, so nobody waits to send to one who waits to send."""


class Kind(enum.StrEnum):
    """What became of a task."""

    DONE = "done"
    RAISED = "raised"
    TIME_OUT = "time_out"
    MEMORY = "memory"
    CRASH = "crash"
    KILLED = "killed"
    POOL_DOWN = "pool_down"


@dataclass(frozen=True)
class Outcome:
    """The end of one task: `value` when it is done, `detail` when it is not, `seconds` of work in the worker."""

    kind: Kind
    value: Any = None
    detail: str = ""
    seconds: float = 0.0


@dataclass
class _Task:
    payload: bytes
    time_limit: float
    retries: int
    future: Future


class _Worker(threading.Thread):
    """One slot: a thread of the parent that owns one worker process and feeds it.

    Quick tasks are sent several at a time: the worker goes from one to the next by itself, and the parent, which has no
    core of its own, wakes once for several replies. Each task has its own time limit all the same, counted from the
    moment its forerunner ended, and what a worker had not begun when it died goes back into the queue.
    """

    def __init__(self, tasks: queue.SimpleQueue, fork_server: ForkServer, memory_limit: int, slots: int):
        super().__init__(name="reward_fns.pool", daemon=True)
        self._tasks = tasks
        self._fork_server = fork_server
        self._memory_limit = memory_limit
        self._slots = slots
        self._usual_seconds = 1.0
        self._pid = 0
        self._born_of = 0
        self._connection: socket.socket | None = None
        self._bell = -1
        self._received = bytearray()

    def run(self) -> None:
        while batch := self._take():
            ended = 0
            for task, outcome in zip(batch, self._perform(batch), strict=False):
                self._usual_seconds = 0.5 * (self._usual_seconds + outcome.seconds)
                if outcome.kind is Kind.KILLED and task.retries:
                    task.retries -= 1
                    break
                task.future.set_result(outcome)
                ended += 1
            self._put_back(batch[ended:])
            del batch, task, outcome
        self._bury()

    def _take(self) -> list[_Task]:
        """The next tasks for this worker: as many as it does in a moment and leave enough for the others."""
        batch: list[_Task] = []
        quick = int(MOMENT / max(self._usual_seconds, MOMENT / MOST_AT_ONCE))
        most = max(1, min(quick, 1 + self._tasks.qsize() // (2 * self._slots)))
        room = MOST_BYTES_AHEAD
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

    def _put_back(self, tasks: list[_Task | None]) -> None:
        for task in tasks:
            self._tasks.put(task)
        if tasks and self._fork_server.closed:
            _give_up(self._tasks)  # who closed the pool may have looked for waiting tasks before the put

    def _perform(self, batch: list[_Task]) -> Iterator[Outcome]:
        """The outcomes of the tasks in their order, up to the first that costs the worker its life."""
        try:
            if self._connection is None:
                self._pid, self._connection, self._bell = self._fork_server.fork(self._memory_limit)
                self._born_of = self._fork_server.pid
        except (OSError, PoolError) as error:
            yield Outcome(Kind.POOL_DOWN, detail=str(error)[:500])
            return
        started = time.monotonic()
        for place, task in enumerate(batch):
            try:
                if place == 0:
                    self._send(batch)
                retires, kind, value, seconds, ended = self._reply(started + task.time_limit)
            except TimeoutError:
                self._bury()
                detail = f"over {task.time_limit:g} s"
                yield Outcome(Kind.TIME_OUT, detail=detail, seconds=time.monotonic() - started)
                return
            except (OSError, ValueError, EOFError, TypeError):
                yield self._post_mortem(time.monotonic() - started)
                return
            if retires:
                self._bury()
            yield Outcome(kind, seconds=seconds, **{"value" if kind is Kind.DONE else "detail": value})
            if retires:
                return
            started = min(ended, time.monotonic())

    def _send(self, batch: list[_Task]) -> None:
        last = len(batch) - 1
        parts = (HEADER.pack(len(t.payload), place < last) + t.payload for place, t in enumerate(batch))
        self._connection.settimeout(batch[0].time_limit)
        self._connection.sendall(b"".join(parts))
        self._connection.settimeout(0)

    def _reply(self, deadline: float) -> tuple[bool, Kind, Any, float, float]:
        """Whether the worker retires, what became of the task, its value or detail, its seconds, and when it ended."""
        length, retires = HEADER.unpack(self._read(HEADER.size, deadline, self._bell))
        if length > MAX_REPLY_BYTES:
            raise ConnectionError("a reply longer than a worker may send")
        kind, value, seconds, ended = marshal.loads(self._read(length, deadline, self._connection))
        return retires, Kind(kind), value, float(seconds), float(ended)

    def _read(self, count: int, deadline: float, sign: int | socket.socket) -> bytes:
        while len(self._received) < count:
            try:
                part = self._connection.recv(1 << 16)
                if not part:
                    raise ConnectionError
                self._received += part
            except BlockingIOError:
                self._wait(deadline, sign)
        found = bytes(self._received[:count])
        del self._received[:count]
        return found

    def _wait(self, deadline: float, sign: int | socket.socket) -> None:
        """Until there is something to read from `sign`: the bell or, within a reply, the connection. Not for long: a
        worker that hangs does not ring for what it did before."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        waiting = select.poll()
        waiting.register(sign, select.POLLIN)
        if waiting.poll(1000 * min(remaining, LONGEST_WAIT)) and sign == self._bell:
            os.read(self._bell, 64)

    def _post_mortem(self, seconds: float) -> Outcome:
        code = self._bury()
        if code is None or code in (-signal.SIGKILL, -signal.SIGTERM):
            return Outcome(Kind.KILLED, detail="the worker was killed from outside", seconds=seconds)
        return Outcome(Kind.CRASH, detail=f"the worker ended with exit code {code}", seconds=seconds)

    def _bury(self) -> int | None:
        self._received.clear()
        if self._connection is None:
            return None
        self._hang_up()
        return self._fork_server.reap(self._pid, self._born_of)

    def let_go(self) -> None:
        """After a fork: close the copies of the connection and the bell."""
        if self._connection is not None:
            self._hang_up()

    def _hang_up(self) -> None:
        self._connection.close()
        os.close(self._bell)
        self._connection, self._bell = None, -1


class Pool:
    """Worker processes that can be killed.

    Args:
        workers: processes that work at the same time.
        time_limit: seconds of wall clock that a task may take; the worker is killed and replaced when it takes longer.
        memory_limit: bytes by which a worker's address space may grow over what it had at birth.
        retries: how often a task is tried again after its worker was killed from outside (SIGKILL, SIGTERM).
        preload: modules imported once, before workers are forked. A module's `warm_up()` is called if it has one.

    Raises:
        OptionError: a limit that is not positive.
    """

    def __init__(
        self,
        workers: int = 2,
        time_limit: float = 5.0,
        memory_limit: int = 1 << 30,
        retries: int = 1,
        preload: Sequence[str] = ("reward_fns.algebra",),
    ):
        if workers < 1 or not time_limit > 0 or memory_limit <= 0 or retries < 0:
            raise OptionError(f"a pool needs positive limits, got {workers=} {time_limit=} {memory_limit=} {retries=}")
        self.workers = workers
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self.retries = retries
        self._preload = tuple(preload)
        self._closed = False
        self._reset()
        _POOLS.add(self)

    def submit(self, function: Callable | str, *args, time_limit: float | None = None, **kwargs) -> Future:
        """Queue one call.

        Args:
            function: an importable function, or its name as `module:function`.
            time_limit: seconds for this task in place of the pool's.

        Returns:
            A future whose result is an Outcome; it never carries an exception of the task.

        Raises:
            PoolError: the pool is closed, or the function or its arguments cannot travel to another process.
        """
        reference = function if isinstance(function, str) else reference_of(function)
        try:
            payload = pickle.dumps((reference, args, kwargs), protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise PoolError(f"the arguments of {reference} cannot be pickled: {error}") from error
        future: Future = Future()
        with self._lock:
            if self._closed:
                raise PoolError("the pool is closed")
            if not self._slots:
                self._start()
            self._tasks.put(_Task(payload, time_limit or self.time_limit, self.retries, future))
        return future

    def run(self, function: Callable | str, *args, time_limit: float | None = None, **kwargs) -> Outcome:
        """Do one call and wait for its end."""
        return self.submit(function, *args, time_limit=time_limit, **kwargs).result()

    def map(self, function: Callable | str, rows: Iterable[tuple], time_limit: float | None = None) -> list[Outcome]:
        """Do one call for each row of arguments and wait for all of them; outcomes in the order of the rows."""
        futures = [self.submit(function, *row, time_limit=time_limit) for row in rows]
        concurrent.futures.wait(futures)  # wakes once
        return [future.result() for future in futures]

    async def arun(self, function: Callable | str, *args, time_limit: float | None = None, **kwargs) -> Outcome:
        """As `run`, for an event loop."""
        return await asyncio.wrap_future(self.submit(function, *args, time_limit=time_limit, **kwargs))

    def close(self) -> None:
        """Kill the workers. Tasks still waiting end as `pool_down`."""
        with self._lock:
            self._closed = True
            if self._finalizer is not None:
                self._finalizer()
        for slot in self._slots:
            slot.join(timeout=10)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_exc) -> None:
        self.close()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._slots: list[_Worker] = []
        self._fork_server = ForkServer(self._preload)
        self._finalizer: weakref.finalize | None = None

    def _start(self) -> None:
        self._slots = [
            _Worker(self._tasks, self._fork_server, self.memory_limit, self.workers) for _ in range(self.workers)
        ]
        self._finalizer = weakref.finalize(self, _shut_down, self._tasks, self._fork_server, self.workers)
        for slot in self._slots:
            slot.start()

    def _after_fork(self) -> None:
        for slot in self._slots:
            slot.let_go()
        self._fork_server.forget()
        if self._finalizer is not None:
            self._finalizer.detach()
        self._reset()


def _shut_down(tasks: queue.SimpleQueue, fork_server: ForkServer, workers: int) -> None:
    fork_server.close()
    _give_up(tasks)
    for _ in range(workers):
        tasks.put(None)


def _give_up(tasks: queue.SimpleQueue) -> None:
    """End what waits in the queue of a closed pool; the sign for the slots to stop stays in it."""
    waiting = []
    while not tasks.empty():
        try:
            waiting.append(tasks.get_nowait())
        except queue.Empty:
            break
    for task in waiting:
        if task is None:
            tasks.put(None)
        elif task.future.running() or task.future.set_running_or_notify_cancel():
            task.future.set_result(Outcome(Kind.POOL_DOWN, detail="the pool was closed"))


def reference_of(function: Callable) -> str:
    """`module:name` of an importable function.

    Raises:
        PoolError: a lambda, a local function, or one of a script: another process cannot import it.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        raise PoolError(f"{function!r} cannot be imported by a worker; put it at the top level of an importable module")
    reference = f"{module}:{name}"
    try:
        found = resolve(reference)
    except (ImportError, AttributeError) as error:
        raise PoolError(f"{reference} cannot be imported by a worker: {error}") from error
    if found is not function:
        raise PoolError(f"{reference} names another object than the function given (a decorated or reloaded one?)")
    return reference


_POOLS: "weakref.WeakSet[Pool]" = weakref.WeakSet()
_shared: dict[tuple[int, int], Pool] = {}
_shared_lock = threading.Lock()


def shared_pool(workers: int | None = None, memory_limit: int = 1 << 30) -> Pool:
    """The pool of this process with these limits, made at first need.

    Args:
        workers: default: the environment variable REWARD_FNS_WORKERS, else 2 (verl runs several reward workers per
            node, and each has a pool of its own).
    """
    if workers is None:
        workers = int(os.environ.get("REWARD_FNS_WORKERS", "2"))
    key = (workers, int(memory_limit))
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Pool(workers, memory_limit=memory_limit)
        return _shared[key]


def _after_fork_in_child() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in list(_POOLS):
        pool._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
