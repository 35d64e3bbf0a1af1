"""The child side of `reward_fns.pool`: the fork server, and the loop that a worker runs.

Started as `python -P -m reward_fns.forked_worker <fd> <parent pid> <module> ...`. It imports the named modules once, so
that a replacement for a killed worker costs a fork (milliseconds) and not an import of sympy (seconds). It has one
thread, which is what makes the fork safe whatever threads, event loops or Ray actors live in the parent.
"""

import ctypes
import gc
import importlib
import marshal
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

from reward_fns import worker_memory

HEADER = struct.Struct("!Q?")
"""Before a request or a reply: its length and, of a reply, whether the worker retires."""
MAX_REPLY_BYTES = 16 << 20
_PLAIN_SCALARS = (type(None), bool, int, float, str, bytes)
_PR_SET_PDEATHSIG = 1


def resolve(reference: str) -> Any:
    """The function that `module:qualified.name` names."""
    module, _, name = reference.partition(":")
    target = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return target


def check_plain(value: Any, depth: int = 0) -> None:
    """Only plain data travels back: the parent must never run foreign code, not even a `__reduce__` or a `__str__`."""
    if type(value) in _PLAIN_SCALARS:
        return
    if depth > 32:
        raise TypeError("a result nested deeper than 32 levels")
    if type(value) in (list, tuple, set, frozenset):
        for item in value:
            check_plain(item, depth + 1)
    elif type(value) is dict:
        for key, item in value.items():
            check_plain(key, depth + 1)
            check_plain(item, depth + 1)
    else:
        raise TypeError(
            f"returned {type(value).__name__}; only numbers, strings, bytes and containers of them travel back"
        )


def answer(request: bytes) -> tuple[bytes, bool]:
    """Run one request.

    Returns:
        The marshalled reply `(kind, value, seconds)`, and whether the worker must retire (its memory was exhausted).
    """
    started = time.perf_counter()
    retire = False
    try:
        # A request of the parent to its child.
        reference, args, kwargs = pickle.loads(request)  # noqa: S301
        value = resolve(reference)(*args, **kwargs)
        check_plain(value)
        reply = marshal.dumps(("done", value, time.perf_counter() - started))
        if len(reply) > MAX_REPLY_BYTES:
            raise ValueError(f"the result takes {len(reply)} bytes, more than {MAX_REPLY_BYTES}")
        return reply, False
    except MemoryError:
        kind, detail, retire = "memory", "", True
    except Exception as error:
        kind, detail = "raised", f"{type(error).__name__}: {error}"[:500]
    except SystemExit as error:
        kind, detail = "raised", f"SystemExit: {error.code!r}"[:500]
    return marshal.dumps((kind, detail, time.perf_counter() - started)), retire


def work(connection: socket.socket, memory_limit: int) -> None:
    """The loop of one worker: one request after the other, until end of file or until its memory has grown."""
    memory = worker_memory.hold(memory_limit)
    requests = connection.makefile("rb")
    retire = False
    while not retire and (header := requests.read(HEADER.size)):
        reply, retire = answer(requests.read(HEADER.unpack(header)[0]))
        # A cache that grew must not use up the allowance of the next sample.
        retire = retire or memory.half_used
        connection.sendall(HEADER.pack(len(reply), retire) + reply)


def _end_with(parent: int) -> None:
    """Ask the kernel to kill this process with its parent, which may itself be killed without a chance to clean up."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _become_worker(connection: socket.socket, server_pid: int, memory_limit: int) -> None:
    _end_with(server_pid)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass  # a container may forbid it; then the kernel chooses by size alone
    try:
        work(connection, memory_limit)
    except (ConnectionError, KeyboardInterrupt):
        pass
    finally:
        os._exit(0)


def serve(control: socket.socket, parent: int) -> None:
    """Fork and reap workers on request until the parent is gone."""
    server_pid = os.getpid()
    while True:
        # A fork of the parent may hold the other end open: end of file alone does not show that the parent is gone.
        if not select.select([control], [], [], 1.0)[0]:
            if os.getppid() != parent:
                return
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            return
        command, number = message[:1], int(message[1:])
        if command == b"F":
            connection = socket.socket(fileno=descriptors[0])
            pid = os.fork()
            if pid == 0:
                control.close()
                _become_worker(connection, server_pid, number)
            connection.close()
            control.send(b"%d" % pid)
        else:
            # Not waited for until now, so the number cannot have passed to another process.
            os.kill(number, signal.SIGKILL)
            control.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]))


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    parent = int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for module in sys.argv[3:]:
            warm_up = getattr(importlib.import_module(module), "warm_up", None)
            if warm_up is not None:
                warm_up()
    except Exception as error:
        control.send(f"error {type(error).__name__}: {error}".encode("utf-8", "replace")[:2000])
        return
    gc.collect()
    gc.freeze()
    control.send(b"ready")
    serve(control, parent)
    # The kernel ends the workers with this process.


if __name__ == "__main__":
    main()
