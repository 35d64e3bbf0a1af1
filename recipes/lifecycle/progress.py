"""Say what a run is doing while its models load, which takes minutes on a busy machine.

Ray names a worker's process after the method it runs, and vLLM its engines, so that the titles of a run's processes
tell where its start-up is. The report ends with the first rollouts.
"""

import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import psutil

from recipes.lifecycle import leftovers

POLL_SECONDS = 2.0
REPEAT_SECONDS = 60.0

LONGEST_SECONDS = 3600.0

# From the last stage of the start-up to the first: the text in a process's title, and what it means.
STAGES = (
    ("generate_sequences", "the first rollouts are being written"),
    ("update_weights", "the rollout engines take the model's weights"),
    ("VLLM::EngineCore", "the rollout engines load the model"),
    ("launch_server", "the rollout engines start"),
    ("load_checkpoint", "the training workers load the checkpoint"),
    ("init_model", "the training workers load the model"),
    ("WorkerDict", "the training workers start"),
    ("TaskRunner", "the task runner starts"),
    ("raylet", "Ray has started"),
)


def stage(titles: Collection[str]) -> tuple[str, bool]:
    """What a run does, from the titles of its processes, and whether its start-up is over."""
    for mark, meaning in STAGES:
        if any(mark in title for title in titles):
            return meaning, mark == STAGES[0][0]
    return "Ray starts", False


@dataclass
class Progress:
    """A thread of the driver that reports the start-up of one run on stderr until :meth:`stop`.

    Attributes:
        name: of the recipe, before each line.
        run: whose processes are looked at.
    """

    name: str
    run: leftovers.RunRecord
    poll: float = POLL_SECONDS
    repeat: float = REPEAT_SECONDS
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin to report."""
        threading.Thread(target=self._report, name="verl-duets-progress", daemon=True).start()

    def stop(self) -> None:
        """End the report."""
        self._stopped.set()

    def _report(self) -> None:
        began, told, last = time.monotonic(), "", 0.0
        over = False
        while not over and time.monotonic() - began < LONGEST_SECONDS and not self._stopped.wait(self.poll):
            what, over = stage(titles_of(self.run))
            seconds = time.monotonic() - began
            if what != told or seconds - last >= self.repeat:
                self.say(f"{self.name}: {what} ({seconds:.0f} s)")
                told, last = what, seconds


def titles_of(run: leftovers.RunRecord) -> list[str]:
    """Command lines or titles of a run's processes on this host."""
    titles = []
    for process in leftovers.processes_of({run.name}):
        try:
            titles.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return titles
