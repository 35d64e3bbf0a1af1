"""The fork server as the parent sees it: the process that has imported everything and forks workers on request.

Its own side is `reward_fns.forked_worker`.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from reward_fns.errors import PoolError

START_LIMIT = 240.0
"""Seconds that the first import in the fork server may take."""
REPLY_LIMIT = 120.0
"""Seconds for a fork; long, since a machine under load is no reason to give up the server."""


@dataclass
class Worker:
    """A worker process as the parent sees it.

    Attributes:
        server_pid: process id of the fork server that it is a child of.
        connection: our end of its connection.
    """

    pid: int
    server_pid: int
    connection: socket.socket


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    control: socket.socket

    def ask(self, request: bytes, descriptors: Sequence[int] = ()) -> int:
        """Send a request, with the descriptors that go with it; the number that answers it."""
        socket.send_fds(self.control, [request], descriptors)
        return int(self.receive())

    def receive(self) -> bytes:
        message = self.control.recv(4096)
        if not message:
            raise ConnectionError("the fork server ended unexpectedly")
        return message


class ForkServer:
    """The fork server, started at first need and again whenever it has ended."""

    def __init__(self, preload: Sequence[str]):
        self._preload = tuple(preload)
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._closed = False

    def fork(self, memory_limit: int) -> Worker:
        """A new worker.

        Raises:
            PoolError: the fork server could not be started.
        """
        with self._lock:
            for attempt in (1, 2):
                server = self._running_server()
                try:
                    return self._fork(server, memory_limit)
                except (OSError, ValueError) as error:
                    self._stop()
                    if attempt == 2:
                        raise PoolError(f"no worker could be started: {error}") from error
        raise AssertionError("unreachable")

    @staticmethod
    def _fork(server: _Server, memory_limit: int) -> Worker:
        ours, theirs = socket.socketpair()
        try:
            pid = server.ask(b"F%d" % memory_limit, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return Worker(pid, server.process.pid, ours)

    def reap(self, worker: Worker) -> int | None:
        """Kill a worker if it still runs; its exit code (negative: a signal), or None when its fork server is gone."""
        with self._lock:
            if self._server is None or self._server.process.pid != worker.server_pid:
                return None  # its parent ended, and the kernel killed the worker with it
            try:
                return self._server.ask(b"R%d" % worker.pid)
            except (OSError, ValueError):
                self._stop()
                return None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def pid(self) -> int:
        """Process id of the server, 0 while there is none."""
        return self._server.process.pid if self._server else 0

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop()

    def forget(self) -> None:
        """After a fork: drop the parent's fork server without touching it."""
        self._lock = threading.Lock()
        if self._server is not None:
            self._server.control.close()
            self._server.process.returncode = 0  # not our child: no wait, no warning
        self._server = None

    def _running_server(self) -> _Server:
        if self._closed:
            raise PoolError("the pool is closed")
        if self._server is not None and self._server.process.poll() is None:
            return self._server
        self._stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in [root, *sys.path] if p))
        module = [sys.executable, "-P", "-m", "reward_fns.forked_worker"]
        with theirs:
            process = subprocess.Popen(
                [*module, str(theirs.fileno()), str(os.getpid()), *self._preload],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self._server = server = _Server(process, ours)
        ours.settimeout(START_LIMIT)
        try:
            hello = server.receive()
        except OSError as error:
            hello = str(error).encode()
        if hello != b"ready":
            self._stop()
            raise PoolError(f"the fork server could not start: {hello.decode('utf-8', 'replace')}")
        ours.settimeout(REPLY_LIMIT)
        return server

    def _stop(self) -> None:
        if self._server is not None:
            self._server.control.close()
            self._server.process.kill()
            self._server.process.wait()
        self._server = None
