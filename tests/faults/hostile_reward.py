"""A reward function that tries what it should not; the response says what."""

import asyncio
import os
import pathlib
import resource
import signal
import socket
import subprocess
import tempfile
import threading


def keys(arguments):
    """Every key that this process can find in its own environment or in that of a process above it."""
    found = [value for value in os.environ.values() if "canary" in value]
    process = os.getpid()
    for _ in range(4):
        try:
            environment = pathlib.Path(f"/proc/{process}/environ").read_bytes()
            found += [entry.decode() for entry in environment.split(b"\0") if b"canary" in entry]
            process = int(pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    if found:
        return 1.0
    raise PermissionError("no key was found")


ATTEMPTS = {
    "keys": keys,
    "connect": lambda a: socket.create_connection(("127.0.0.1", int(a["extra_info"]["port"])), timeout=2),
    "datagram": lambda a: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "fork": lambda a: os.fork(),
    "program": lambda a: subprocess.run(["true"], check=True),
    "kill": lambda a: os.kill(os.getppid(), signal.SIGKILL),
    "killpg": lambda a: os.killpg(0, signal.SIGKILL),
    "write": lambda a: pathlib.Path(a["extra_info"]["folder"], "written").write_text("x"),
    "append": lambda a: pathlib.Path(a["extra_info"]["folder"], "there").open("a").write("x"),
    "remove": lambda a: pathlib.Path(a["extra_info"]["folder"], "there").unlink(),
    "rename": lambda a: pathlib.Path(a["extra_info"]["folder"], "there").rename("/tmp/elsewhere"),
    "truncate": lambda a: os.truncate(pathlib.Path(a["extra_info"]["folder"], "there"), 0),
    "chmod": lambda a: os.chmod(pathlib.Path(a["extra_info"]["folder"], "there"), 0),
    "shared memory": lambda a: pathlib.Path("/dev/shm/hostile").write_bytes(bytes(10)),
    "anonymous file": lambda a: os.memfd_create("hostile"),
    "limits": lambda a: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
    "limits of another": lambda a: resource.prlimit(os.getppid(), resource.RLIMIT_AS, (1 << 20, 1 << 20)),
    "memory": lambda a: len(bytearray(8 << 30)),
}


def harmless(arguments):
    """Threads, an event loop, limits and files that are only read, output that goes nowhere, what libraries ask for."""
    results = []
    thread = threading.Thread(target=lambda: results.append(resource.getrlimit(resource.RLIMIT_AS)))
    thread.start()
    thread.join()
    asyncio.run(asyncio.sleep(0))
    tempfile.gettempdir()
    print("anything", file=open(os.devnull, "w"))
    return float(bool(results) and pathlib.Path(__file__).read_text() != "")


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    arguments = {"extra_info": extra_info}
    if solution_str == "harmless":
        return harmless(arguments)
    ATTEMPTS[solution_str](arguments)
    return 1.0
