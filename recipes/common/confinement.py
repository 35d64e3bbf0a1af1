"""Take from this process what a reward function does not need: network, processes, writing, secrets.

A function of the user's, or a model's text that it evaluates, runs beside keys, checkpoints and other people's jobs.
On Linux on x86-64 the worker process that calls it gives up, for good and before the function is imported:

- the environment's secrets (:data:`SECRET`), from its memory too;
- the network: ``socket`` fails;
- other processes: to start one, to send one a signal, to read its memory or its environment;
- writing: to create, change, rename or remove a file, a device or shared memory; reading stays;
- raising its own limits of memory and time.

Each fails with PermissionError. ``landlock(7)`` holds the files and the memory of others, ``seccomp(2)`` the rest;
neither needs privileges, both bind what the process starts. Root gives up its capabilities, but for those that open
files. :func:`why_not` says where they are not to be had.
"""

import ctypes
import os
import platform
import re
import struct
import tempfile
from collections.abc import Collection, Iterator

from recipes.errors import EnvironmentProblem

PERMISSIONS = ("network", "processes", "files", "environment")
SECRET = re.compile(r".*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL).*", re.IGNORECASE)

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CAPGET, _CAPSET, _CAPABILITIES_VERSION = 125, 126, 0x20080522
_OPENS_FILES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _SECCOMP_FILTER = 38, 22, 2
# Landlock's rights: write a file, remove or make an entry of any kind; truncate, since its third version.
_WRITES = 1 << 1 | sum(1 << bit for bit in range(4, 13))
_TRUNCATE = 1 << 14
_MAKE_BLOCK_DEVICE = 1 << 11
_ARCHITECTURE = 0xC000003E
_OTHER_ABI = 0x40000000
_THREAD = 0x00010000
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16

# Numbers of system calls on x86-64, by what they are taken away with.
_SOCKET = (41, 425)  # io_uring opens sockets and files beside the filter
_PROCESSES = (57, 58, 59, 101, 129, 200, 272, 297, 310, 311, 322, 424, 438)
_CLONE, _CLONE3 = 56, 435
_SIGNALS = (62, 234)
_FILES = (90, 91, 92, 93, 94, 260, 268, 319, 425, 452)
_LIMITS, _PRLIMIT = 160, 302
_MEMORY = 9
"""RLIMIT_AS."""


def why_not() -> str:
    """Why a process of this machine cannot be confined, "" where it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"{platform.system()} on {platform.machine()} is not Linux on x86-64"
    if _landlock_version() < 1:
        return "this kernel has no Landlock"
    return ""


def confine(allow: Collection[str] = ()) -> None:
    """Confine the calling thread and whatever it starts, once and for all.

    Args:
        allow: of :data:`PERMISSIONS`, what stays.

    Raises:
        EnvironmentProblem: the kernel refuses.
    """
    if "environment" not in allow:
        forget_secrets()
    if why_not():
        return
    # Libraries ask for it when they are imported, and Python finds it by writing there.
    tempfile.gettempdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise EnvironmentProblem(f"privileges cannot be given up: {os.strerror(ctypes.get_errno())}")
    _give_up_capabilities(libc)
    _restrict_files(libc, writing="files" in allow)
    _filter_calls(libc, b"".join(_program(allow)))


def forget_secrets() -> None:
    """Remove secrets from the environment, and from where the kernel shows what the process was started with."""
    for name in [name for name in os.environ if SECRET.fullmatch(name)]:
        del os.environ[name]
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except FileNotFoundError:
        return
    # Fields 50 and 51 of proc(5); the first after the name is field 3.
    start, end = int(fields[47]), int(fields[48])
    position = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, _, value = entry.partition(b"=")
        if SECRET.fullmatch(name.decode("utf-8", "replace")):
            ctypes.memset(position + len(name) + 1, 0, len(value))
        position += len(entry) + 1


def _give_up_capabilities(libc: ctypes.CDLL) -> None:
    """Root may read the memory of every process, whatever Landlock says; what opens files stays, so that imports do."""
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    if libc.syscall(_CAPGET, header, held) != 0:
        raise EnvironmentProblem(f"capabilities cannot be read: {os.strerror(ctypes.get_errno())}")
    low = [word & _OPENS_FILES for word in struct.unpack("=6I", held.raw)[:3]]
    if libc.syscall(_CAPSET, header, struct.pack("=6I", *low, 0, 0, 0)) != 0:
        raise EnvironmentProblem(f"capabilities cannot be given up: {os.strerror(ctypes.get_errno())}")


def _landlock_version() -> int:
    return ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)


def _restrict_files(libc: ctypes.CDLL, *, writing: bool) -> None:
    # One right must be handled for the process to be in a domain, which keeps it out of the memory of all others.
    handled = _MAKE_BLOCK_DEVICE if writing else _WRITES | (_TRUNCATE if _landlock_version() >= 3 else 0)
    ruleset = libc.syscall(_CREATE_RULESET, struct.pack("=Q", handled), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        raise EnvironmentProblem(f"Landlock refuses its rules: {os.strerror(ctypes.get_errno())}")
    try:
        if not writing:
            null = os.open("/dev/null", os.O_PATH)
            libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", 1 << 1, null), 0)
            os.close(null)
        if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
            raise EnvironmentProblem(f"Landlock refuses to start: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(ruleset)


def _filter_calls(libc: ctypes.CDLL, program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

    instructions = ctypes.create_string_buffer(program, len(program))
    filtered = Program(len(program) // 8, ctypes.addressof(instructions))
    if libc.prctl(_SET_SECCOMP, _SECCOMP_FILTER, ctypes.byref(filtered), 0, 0) != 0:
        raise EnvironmentProblem(f"seccomp refuses its filter: {os.strerror(ctypes.get_errno())}")


def _program(allow: Collection[str]) -> Iterator[bytes]:
    """The filter, instruction by instruction: classic BPF over the number and the arguments of a system call."""
    yield from (_do(_LOAD, _ARCHITECTURE_AT), _do(_EQUAL, _ARCHITECTURE, 1, 0), _refuse())
    yield from (_do(_LOAD, _NUMBER_AT), _do(_AT_LEAST, _OTHER_ABI, 0, 1), _refuse())
    refused = {_LIMITS}
    refused |= set() if "network" in allow else set(_SOCKET)
    refused |= set() if "files" in allow else set(_FILES)
    refused |= set() if "processes" in allow else set(_PROCESSES)
    for number in sorted(refused):
        yield from (_do(_EQUAL, number, 0, 1), _refuse())
    # Limits may be read: the new ones are a null pointer then. That of memory may be set within its hard limit, which
    # the kernel holds, but of this process alone.
    low, high, resource_at = _ARGUMENTS_AT + 16, _ARGUMENTS_AT + 20, _ARGUMENTS_AT + 8
    yield _do(_EQUAL, _PRLIMIT, 0, 10)
    yield from (_do(_LOAD, low), _do(_EQUAL, 0, 0, 2), _do(_LOAD, high), _do(_EQUAL, 0, 5, 0))
    yield from (_do(_LOAD, _ARGUMENTS_AT), _do(_EQUAL, 0, 0, 2), _do(_LOAD, resource_at), _do(_EQUAL, _MEMORY, 1, 0))
    yield from (_refuse(), _accept())
    if "processes" not in allow:
        yield from (_do(_EQUAL, _CLONE3, 0, 1), _refuse(_ENOSYS))  # glibc then takes clone, whose flags can be read
        yield _do(_EQUAL, _CLONE, 0, 4)
        yield from (_do(_LOAD, _ARGUMENTS_AT), _do(_HAS_BITS, _THREAD, 1, 0), _refuse(), _accept())
        for number in _SIGNALS:
            yield _do(_EQUAL, number, 0, 4)
            yield from (_do(_LOAD, _ARGUMENTS_AT), _do(_EQUAL, os.getpid(), 1, 0), _refuse(), _accept())
    yield _accept()


def _do(code: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, value)


def _refuse(error: int = _EPERM) -> bytes:
    return _do(_RETURN, _ERRNO | error)


def _accept() -> bytes:
    return _do(_RETURN, _ALLOW)
