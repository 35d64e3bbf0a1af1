"""The fork server as the parent sees it: the process that has imported everything and forks workers on request.

Its own side is `reward_fns.forked_worker`.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from reward_fns.errors import PoolError

START_LIMIT = 240.0
"""Seconds that the first import in the fork server may take."""
REPLY_LIMIT = 120.0
"""Seconds for a fork; long, since a machine under load is no reason to give up the server."""


class ForkServer:
    """The fork server, started at first need and again whenever it has died."""

    def __init__(self, preload: Sequence[str]):
        self._preload = tuple(preload)
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._closed = False

    def fork(self, memory_limit: int) -> tuple[int, socket.socket, int]:
        """A new worker.

        Returns:
            Its process id, our end of its connection, and our end of the pipe that wakes us when replies are there.

        Raises:
            PoolError: the fork server could not be started.
        """
        with self._lock:
            for attempt in (1, 2):
                self._start()
                ours, theirs = socket.socketpair()
                wake_pipe, its_end = os.pipe()
                try:
                    try:
                        socket.send_fds(self._control, [b"F%d" % memory_limit], [theirs.fileno(), its_end])
                    finally:
                        theirs.close()
                        os.close(its_end)
                    return int(self._reply()), ours, wake_pipe
                except (OSError, ValueError) as error:
                    ours.close()
                    os.close(wake_pipe)
                    self._stop()
                    if attempt == 2:
                        raise PoolError(f"no worker could be started: {error}") from error
        raise AssertionError("unreachable")

    def reap(self, pid: int, server_pid: int) -> int | None:
        """Kill a worker if it still runs; its exit code (negative: a signal), or None when its fork server is gone."""
        with self._lock:
            if self._process is None or self._process.pid != server_pid:
                return None  # its parent died, and the kernel killed the worker with it
            try:
                self._control.send(b"R%d" % pid)
                return int(self._reply())
            except (OSError, ValueError):
                self._stop()
                return None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop()

    def forget(self) -> None:
        """After a fork: forget the parent's fork server without touching it."""
        self._lock = threading.Lock()
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # not our child: no wait, no warning
        self._process = self._control = None

    def _reply(self) -> bytes:
        message = self._control.recv(4096)
        if not message:
            raise ConnectionError("the fork server has died")
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
                    "reward_fns.forked_worker",
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
        ours.settimeout(REPLY_LIMIT)

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._control = None
