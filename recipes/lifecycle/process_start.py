"""When a process began, told so that a step of the clock changes nothing.

psutil and ps add the kernel's boot time, which moves when somebody sets the clock: a run that lives would look like
another one with its number, and be taken down as a leftover.
"""

import os
import time
from pathlib import Path

import psutil

PROC = Path("/proc")


def seconds_after_boot(pid: int) -> float:
    """When a process began, in seconds after the machine did; without ``/proc`` in seconds since the epoch.

    Raises:
        psutil.NoSuchProcess: there is none of this number.
    """
    if not (PROC / "self" / "stat").exists():
        return psutil.Process(pid).create_time()
    try:
        content = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    # Field 22 of proc(5); the name, which may hold anything, ends with the last bracket, and field 3 follows.
    return int(content.rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def age(pid: int) -> float:
    """Seconds since a process began.

    Raises:
        psutil.NoSuchProcess: there is none of this number.
    """
    now = time.clock_gettime(time.CLOCK_BOOTTIME) if (PROC / "self" / "stat").exists() else time.time()
    return now - seconds_after_boot(pid)


def boot() -> str:
    """A name of the machine's present start, "" where it has none."""
    path = PROC / "sys" / "kernel" / "random" / "boot_id"
    return path.read_text().strip() if path.is_file() else ""
