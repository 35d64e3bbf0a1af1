"""Run untrusted work in processes that can be killed: a wall-clock and a memory limit for each task.

A pool belongs to the process that uses it. It may be called from any number of threads and event loops; after a
fork the
child starts a pool of its own at first use; nothing outlives the parent, even one killed by SIGKILL. A worker
that dies costs its own
task only. Why not a ready-made pool: README.md, "The pool".
"""

import asyncio
import enum
import marshal
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from reward_fns.errors import OptionError, PoolError
from reward_fns.zygote import HEADER, MAX_REPLY_BYTES, resolve

START_LIMIT = 120.0
"""Seconds that the first import in the warm process may take."""


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
    future: Future


class _Nursery:
    """The warm process, started at first need and again whenever it is found dead."""

    def __init__(self, preload: Sequence[str]):
        self._preload = tuple(preload)
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._closed = False

    def fork(self, memory_limit: int) -> tuple[int, socket.socket]:
        """A new worker.

        Returns:
            Its process id and our end of its connection.

        Raises:
            PoolError: the warm process could not be started.
        """
        with self._lock:
            for attempt in (1, 2):
                self._start()
                ours, theirs = socket.socketpair()
                try:
                    with theirs:
                        socket.send_fds(self._control, [b"F%d" % memory_limit], [theirs.fileno()])
                    return int(self._reply()), ours
                except (OSError, ValueError) as error:
                    ours.close()
                    self._stop()
                    if attempt == 2:
                        raise PoolError(f"no worker could be started: {error}") from error
        raise AssertionError("unreachable")

    def reap(self, pid: int, born_of: int) -> int | None:
        """Kill a worker if it still lives; its exit code (negative: a signal), or None when nobody is left to ask."""
        with self._lock:
            if self._process is None or self._process.pid != born_of:
                return None  # its parent died, and the kernel took the worker with it
            try:
                self._control.send(b"R%d" % pid)
                return int(self._reply())
            except (OSError, ValueError):
                self._stop()
                return None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop()

    def forget(self) -> None:
        """After a fork: let go of the parent's warm process without harming it."""
        self._lock = threading.Lock()
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # not our child: no wait, no warning
        self._process = self._control = None

    def _reply(self) -> bytes:
        message = self._control.recv(4096)
        if not message:
            raise ConnectionError("the warm process has died")
        return message

    def _start(self) -> None:
        if self._closed:
            raise PoolError("the pool is closed")
        if self._process is not None and self._process.poll() is None:
            return
        self._stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in [root, *sys.path] if p))
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "reward_fns.zygote",
                    str(theirs.fileno()),
                    str(os.getpid()),
                    *self._preload,
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self._control = ours
        ours.settimeout(START_LIMIT)
        hello = self._reply()
        if hello != b"ready":
            raise ConnectionError(hello.decode("utf-8", "replace"))
        ours.settimeout(30.0)

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._control = None


class _Worker(threading.Thread):
    """One slot: a thread of the parent that owns one worker process and feeds it."""

    def __init__(self, tasks: queue.SimpleQueue, nursery: _Nursery, memory_limit: int, retries: int):
        super().__init__(name="reward_fns.pool", daemon=True)
        self._tasks = tasks
        self._nursery = nursery
        self._memory_limit = memory_limit
        self._retries = retries
        self._pid = 0
        self._born_of = 0
        self._connection: socket.socket | None = None

    def run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if task.future.set_running_or_notify_cancel():
                outcome = self._perform(task)
                for _ in range(self._retries):
                    if outcome.kind is Kind.KILLED:
                        outcome = self._perform(task)
                task.future.set_result(outcome)
            del task
        self._bury()

    def _perform(self, task: _Task) -> Outcome:
        try:
            if self._connection is None:
                self._pid, self._connection = self._nursery.fork(self._memory_limit)
                self._born_of = self._nursery.pid
        except (OSError, PoolError) as error:
            return Outcome(Kind.POOL_DOWN, detail=str(error)[:500])
        started = time.monotonic()
        deadline = started + task.time_limit
        try:
            self._connection.settimeout(task.time_limit)
            self._connection.sendall(HEADER.pack(len(task.payload)) + task.payload)
            length = HEADER.unpack(self._read(HEADER.size, deadline))[0]
            if length > MAX_REPLY_BYTES:
                raise ConnectionError("a reply longer than a worker may send")
            body = self._read(length + 1, deadline)
            kind, value, seconds = marshal.loads(body[1:])
        except TimeoutError:
            self._bury()
            return Outcome(Kind.TIME_OUT, detail=f"over {task.time_limit:g} s", seconds=time.monotonic() - started)
        except (OSError, ValueError, EOFError, TypeError):
            return self._post_mortem(time.monotonic() - started)
        if body[0]:
            self._bury()
        if kind == "done":
            return Outcome(Kind.DONE, value=value, seconds=seconds)
        return Outcome(Kind(kind), detail=value, seconds=seconds)

    def _read(self, count: int, deadline: float) -> bytes:
        parts = []
        while count:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._connection.settimeout(remaining)
            part = self._connection.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _post_mortem(self, seconds: float) -> Outcome:
        code = self._bury()
        if code is None or code in (-signal.SIGKILL, -signal.SIGTERM):
            return Outcome(Kind.KILLED, detail="the worker was killed from outside", seconds=seconds)
        return Outcome(Kind.CRASH, detail=f"the worker ended with exit code {code}", seconds=seconds)

    def _bury(self) -> int | None:
        if self._connection is None:
            return None
        self._connection.close()
        self._connection = None
        return self._nursery.reap(self._pid, self._born_of)

    def let_go(self) -> None:
        """After a fork: close the copy of the connection."""
        if self._connection is not None:
            self._connection.close()


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
            self._tasks.put(_Task(payload, time_limit or self.time_limit, future))
        return future

    def run(self, function: Callable | str, *args, time_limit: float | None = None, **kwargs) -> Outcome:
        """Do one call and wait for its end."""
        return self.submit(function, *args, time_limit=time_limit, **kwargs).result()

    def map(self, function: Callable | str, rows: Iterable[tuple], time_limit: float | None = None) -> list[Outcome]:
        """Do one call for each row of arguments and wait for all of them; outcomes in the order of the rows."""
        futures = [self.submit(function, *row, time_limit=time_limit) for row in rows]
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
        self._nursery = _Nursery(self._preload)
        self._finalizer: weakref.finalize | None = None

    def _start(self) -> None:
        self._slots = [
            _Worker(self._tasks, self._nursery, self.memory_limit, self.retries) for _ in range(self.workers)
        ]
        self._finalizer = weakref.finalize(self, _shut_down, self._tasks, self._nursery, self.workers)
        for slot in self._slots:
            slot.start()

    def _after_fork(self) -> None:
        for slot in self._slots:
            slot.let_go()
        self._nursery.forget()
        if self._finalizer is not None:
            self._finalizer.detach()
        self._reset()


def _shut_down(tasks: queue.SimpleQueue, nursery: _Nursery, workers: int) -> None:
    nursery.close()
    pending = []
    while not tasks.empty():
        try:
            pending.append(tasks.get_nowait())
        except queue.Empty:
            break
    for task in pending:
        if task is not None and task.future.set_running_or_notify_cancel():
            task.future.set_result(Outcome(Kind.POOL_DOWN, detail="the pool was closed"))
    for _ in range(workers):
        tasks.put(None)


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
        workers: default: the environment variable REWARD_FNS_WORKERS, else 2 (verl runs several reward workers
            per node, and
            each has a pool of its own).
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
