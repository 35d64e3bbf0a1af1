"""End a run when its scheduler asks for it, or save on request: what SIGTERM, Ctrl-C and SIGUSR1 do.

SIGTERM and SIGINT let the step in progress end, its checkpoint be written and the run exit with :data:`SAVED`. Where no
step is in progress yet, at a second signal, and after :func:`limit_seconds`, the run is abandoned: it exits with 128
plus the signal's number, and its last complete checkpoint stands. SIGUSR1 has the step in progress saved; the run goes
on.

The driver receives the signals; the trainer reads the requests once per step (:mod:`recipes.core.requests`).
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from recipes.core.requests import Requests
from recipes.core.settings import seconds_from

SAVED = 75
"""Exit code of a run that was asked to end and has saved: EX_TEMPFAIL of sysexits.h, "try again later"."""
VARIABLE = "VERL_DUETS_STOP_SECONDS"
LIMIT_SECONDS = 300.0
POLL_SECONDS = 0.2
ENDING = (signal.SIGTERM, signal.SIGINT)


def limit_seconds() -> float:
    """Seconds a run that was asked to end may take until it is abandoned, from the environment.

    Raises:
        ConfigError: the variable is no positive number.
    """
    return seconds_from(VARIABLE, LIMIT_SECONDS)


@dataclass
class Signals:
    """The driver's side: handlers of the signals, and a thread that passes them on and keeps the time.

    Attributes:
        name: of the recipe, before each line.
        requests: what the trainer reads.
        limit: seconds from the first request to end until the run is abandoned.
    """

    name: str
    requests: Requests
    limit: float = field(default_factory=limit_seconds)
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    asked: list[int] = field(default_factory=list)
    abandoned: bool = False
    _saves: int = 0
    _closed: threading.Event = field(default_factory=threading.Event)
    _before: dict[int, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """Of a run that was asked to end and was abandoned."""
        return 128 + (self.asked[0] if self.asked else signal.SIGTERM)

    def start(self) -> None:
        """Take the signals; a signal that this process ignores, as under ``nohup``, stays ignored."""
        self.listen()
        threading.Thread(target=self._serve, name="verl-duets-signals", daemon=True).start()

    def listen(self) -> None:
        """Take the signals again: ``ray.init`` sets a handler of its own for SIGTERM."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (*ENDING, signal.SIGUSR1):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before.setdefault(number, before)
                signal.signal(number, self._receive)

    def stop(self) -> None:
        """Give the signals back; what still arrives while the run is taken down is not looked at."""
        self._closed.set()
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                signal.signal(number, before)

    def stopped_at(self) -> int | None:
        """The step after which the trainer ended because it was asked to."""
        step = self.requests.get("stopped")
        return None if step is None else int(step)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._closed.is_set():
            return
        if self.abandoned:
            # Once: the processes of the run are then taken down in peace.
            self._closed.set()
            raise KeyboardInterrupt
        if number == signal.SIGUSR1:
            self._saves += 1
        else:
            self.asked.append(number)

    def _serve(self) -> None:
        """Pass on what was received. A handler runs between two lines of the main thread, so it only takes notes."""
        passed, saves, deadline = 0, 0, float("inf")
        while not self._closed.wait(POLL_SECONDS):
            if saves != self._saves:
                saves = self._saves
                self._ask_to_save(saves)
            if len(self.asked) > passed:
                name = signal.Signals(self.asked[-1]).name
                if passed or self.requests.get("step") is None:
                    self._abandon(f"{name}: " + ("asked again" if passed else "no step has begun yet"))
                    return
                passed, deadline = len(self.asked), time.monotonic() + self.limit
                self.requests.put("stop", "yes")
                self.say(
                    f"{self.name}: {name}: the step in progress ends and is saved, then the run exits with code "
                    f"{SAVED}; after {self.limit:g} s ({VARIABLE}), or at a second signal, the step is abandoned"
                )
            if time.monotonic() > deadline:
                self._abandon(f"the step did not end within {self.limit:g} s ({VARIABLE})")
                return

    def _ask_to_save(self, count: int) -> None:
        if self.requests.get("step") is None:
            self.say(f"{self.name}: SIGUSR1: no step has begun yet, so there is nothing to save")
            return
        self.requests.put("save", str(count))
        self.say(f"{self.name}: SIGUSR1: the step in progress will be saved, and the run goes on")

    def _abandon(self, reason: str) -> None:
        self.say(
            f"{self.name}: {reason}; the run is abandoned. Its last complete checkpoint is kept; the same command "
            "resumes from it."
        )
        self.abandoned = True
        os.kill(os.getpid(), self.asked[-1])
