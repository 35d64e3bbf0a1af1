"""Run untrusted work in processes that can be killed: a time and a memory limit for each task.

A pool belongs to the process that uses it. It may be called from any number of threads and event loops; after a fork
the child starts a pool of its own at first use; nothing outlives the parent, even one killed by SIGKILL. A worker
that ends unexpectedly costs its own task only. Why not a ready-made pool: REFERENCE.md, "The pool".
"""

import asyncio
import concurrent.futures
import functools
import importlib.metadata
import os
import pickle
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from reward_fns.errors import OptionError, PoolError
from reward_fns.fork_server import ForkServer
from reward_fns.forked_worker import resolve
from reward_fns.slot import Kind, Outcome, Slot, Task, Tasks, give_up_waiting

ANTLR_VERSION = "4.9.3"
"""The runtime for which math-verify's grammar was made, and hydra's; 4.13 reads some formulas as others."""

__all__ = ["Kind", "Outcome", "Pool", "reference_of", "shared_pool"]


class Pool:
    """Worker processes that can be killed.

    Args:
        workers: processes that work at the same time.
        time_limit: seconds of CPU time and sleep that a task may take; the worker is killed and replaced when it takes
            more. A task that gets no processor for `reward_fns.slot.STARVATION_FACTOR` times as long is `starved`.
        memory_limit: bytes by which a worker's address space may grow over what it had when it was forked or, after
            a block of `reward_fns.worker_memory.loading`, at its end.
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

    def submit(
        self, function: Callable | str, *args: Any, time_limit: float | None = None, **kwargs: Any
    ) -> Future[Outcome]:
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
        future: Future[Outcome] = Future()
        with self._lock:
            if self._closed:
                raise PoolError("the pool is closed")
            if not self._slots:
                self._start()
            self._tasks.put(Task(payload, time_limit or self.time_limit, self.retries, future))
        return future

    def run(self, function: Callable | str, *args: Any, **kwargs: Any) -> Outcome:
        """As `submit`, waiting for the end of the call."""
        return self.submit(function, *args, **kwargs).result()

    def map(self, function: Callable | str, rows: Iterable[tuple], time_limit: float | None = None) -> list[Outcome]:
        """Do one call for each row of arguments and wait for all of them; outcomes in the order of the rows."""
        futures = [self.submit(function, *row, time_limit=time_limit) for row in rows]
        concurrent.futures.wait(futures)  # wakes once
        return [future.result() for future in futures]

    async def arun(self, function: Callable | str, *args: Any, **kwargs: Any) -> Outcome:
        """As `run`, for an event loop."""
        return await asyncio.wrap_future(self.submit(function, *args, **kwargs))

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

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._tasks: Tasks = queue.SimpleQueue()
        self._slots: list[Slot] = []
        self._fork_server = ForkServer(self._preload)
        self._finalizer: weakref.finalize | None = None

    def _start(self) -> None:
        self._slots = [Slot(self._tasks, self._fork_server, self.memory_limit) for _ in range(self.workers)]
        self._finalizer = weakref.finalize(self, _shut_down, self._tasks, self._fork_server, self.workers)
        for slot in self._slots:
            slot.start()

    def _after_fork(self) -> None:
        for slot in self._slots:
            slot.close_copies()
        self._fork_server.forget()
        if self._finalizer is not None:
            self._finalizer.detach()
        self._reset()


def _shut_down(tasks: Tasks, fork_server: ForkServer, workers: int) -> None:
    fork_server.close()
    give_up_waiting(tasks)
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
        resolved = resolve(reference)
    except (ImportError, AttributeError) as error:
        raise PoolError(f"{reference} cannot be imported by a worker: {error}") from error
    if resolved is not function:
        raise PoolError(f"{reference} names another object than the function given (a decorated or reloaded one?)")
    return reference


_POOLS: "weakref.WeakSet[Pool]" = weakref.WeakSet()
_shared: dict[tuple[int, int], Pool] = {}
_shared_lock = threading.Lock()


@functools.lru_cache(maxsize=1)
def _check_parser() -> None:
    version = next((one.version for one in importlib.metadata.distributions(name="antlr4-python3-runtime")), "missing")
    if version != ANTLR_VERSION:
        raise PoolError(
            f"math-verify reads formulas with antlr4-python3-runtime, which is {version}: "
            f"pip install antlr4-python3-runtime=={ANTLR_VERSION}"
        )


def shared_pool(workers: int | None = None, memory_limit: int = 1 << 30) -> Pool:
    """The pool of this process with these limits, made at first need.

    Args:
        workers: default: the environment variable REWARD_FNS_WORKERS, else 2 (verl runs several reward workers per
            node, and each has a pool of its own).

    Raises:
        PoolError: another runtime of math-verify's parser than the one that its grammar was made for.
    """
    _check_parser()
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
