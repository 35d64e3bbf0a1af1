"""Tasks that behave badly in a worker."""

import ctypes
import os
import signal
import time

import numpy


def double(x):
    return 2 * x


def note(path, number):
    with open(path, "a") as journal:
        journal.write(f"{number}\n")
    return number


def reverse(text):
    return text[::-1]


def whoami():
    return os.getpid()


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def spin():
    while True:
        pass


def burn(seconds):
    """Use the processor for so long."""
    ends = time.process_time() + seconds
    while time.process_time() < ends:
        pass
    return seconds


def stop_self():
    os.kill(os.getpid(), signal.SIGSTOP)


def block_in_c():
    return len(str(3 ** (10**8)))


def ignore_every_signal():
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)


def balloon():
    kept = []
    while True:
        kept.append(bytearray(16 << 20))


def fail(message):
    raise ValueError(message)


def leave():
    raise SystemExit(3)


def kill_self(number=signal.SIGKILL):
    os.kill(os.getpid(), number)
    time.sleep(10)


def kill_self_once(marker):
    if not os.path.exists(marker):
        with open(marker, "w"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def read_nothing():
    return ctypes.string_at(0)


class Endless:
    def __str__(self):
        while True:
            pass

    __repr__ = __str__


def endless_object():
    return Endless()


def endless_exception():
    raise ValueError(Endless())


def numpy_scalar():
    return numpy.float64(1.5)


def huge_reply():
    return "x" * (32 << 20)


def print_a_lot():
    print("x" * 1_000_000)
    return 1
