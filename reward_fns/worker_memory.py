"""How far the address space of a worker of `reward_fns.pool` may grow, and what it loads before a task.

What a task takes is held to the pool's limit. What it loads first is not: libraries map far more address space than
they use (those of CUDA three GiB, little of it ever memory), and that says nothing on what the task may take. Nor does
the time that loading takes, or its failure, say anything on the task; the parent tells by the process's name.
"""

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Iterator

LOADING_FACTOR = 32
"""What is loaded may map so many times the pool's limit. A worker that uses it up in memory is the first process that
the kernel kills when there is too little."""

LOADING_NAME = b"reward loading"
"""Name of a process, at most 15 bytes, while it loads."""
_PR_SET_NAME, _PR_GET_NAME = 15, 16


class WorkerMemory:
    """The limit of this process.

    Args:
        limit: bytes over what the process has now or, once it has loaded something, over what it has then.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._base = self._address_space()
        _, given = resource.getrlimit(resource.RLIMIT_AS)
        most = min(self._base + LOADING_FACTOR * limit, sys.maxsize if given == resource.RLIM_INFINITY else given)
        resource.setrlimit(resource.RLIMIT_AS, (min(self._base + limit, most), most))

    @property
    def half_used(self) -> bool:
        """Whether the process has grown by half of its limit."""
        return self._address_space() - self._base > self.limit // 2

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """See `loading` below."""
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        yield
        self._base = self._address_space()
        most = min(self._base + self.limit, most)
        # The hard limit too: what was loaded cannot raise it again without privileges.
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    def _address_space(self) -> int:
        return int(os.pread(self._statm, 64, 0).split()[0]) * resource.getpagesize()


_memory: WorkerMemory | None = None


def hold(limit: int) -> WorkerMemory:
    """Make this process a worker with a limit of memory, in bytes."""
    global _memory
    _memory = WorkerMemory(limit)
    return _memory


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """A block in which a worker's task may map `room_to_load`, once; afterwards its limit counts from what it then has.

    Where the block raises, the room stays: a next task may try again. A task that runs out of time in it, or ends its
    process, is `not_loaded` to the pool. Outside a worker nothing is held.
    """
    if _memory is None:
        yield
        return
    libc, before = ctypes.CDLL(None), ctypes.create_string_buffer(16)
    libc.prctl(_PR_GET_NAME, before)
    libc.prctl(_PR_SET_NAME, LOADING_NAME)
    try:
        with _memory.loading():
            yield
    finally:
        libc.prctl(_PR_SET_NAME, before)


def is_loading(pid: int) -> bool:
    """Whether a process is in a block of `loading`, or ended there and has not been waited for."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as name:
            return name.read().rstrip(b"\n") == LOADING_NAME
    except OSError:
        return False


def room_to_load() -> int:
    """Bytes of address space that what a task loads may map; 0 outside a worker."""
    return 0 if _memory is None else LOADING_FACTOR * _memory.limit
