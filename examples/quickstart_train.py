"""Run a training command with a progress bar fed by its metrics file; a signal ends all that the command started."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from quickstart_report import REWARD, validation_accuracy
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from recipes.launch.leftovers import remove_leftovers
from recipes.launch.monitor import STAGES

POLL_SECONDS = 1.0
SILENT_SECONDS = 60.0
GRACE_SECONDS = 20.0
LOG_LINES_ON_FAILURE = 25
STAGE_LINE = re.compile(rf"^\w+: ({'|'.join(meaning for _, meaning in STAGES)}) \(\d+ s\)$", re.MULTILINE)


class Interrupted(BaseException):
    """A signal asked this supervisor to end; no ``except Exception`` may hold it up."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Descendants:
    """Every process the command has had, also those that have since lost their parent."""

    def __init__(self, root: psutil.Process):
        self._root = root
        self._seen: set[psutil.Process] = {root}

    def update(self) -> None:
        """Note the processes that stand now."""
        standing = list(psutil.process_iter(["ppid"]))
        known = {process.pid for process in self._seen}
        while new := [one for one in standing if one.info["ppid"] in known and one not in self._seen]:
            self._seen.update(new)
            known.update(one.pid for one in new)

    def end(self, grace: float) -> None:
        """Ask the command to end, give it ``grace`` seconds to shut its own processes down, and kill what is left."""
        self.update()
        _signal([self._root], signal.SIGTERM)
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and self._root.is_running() and self._root.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.1)
            self.update()
        _signal(self._seen, signal.SIGKILL)
        psutil.wait_procs(self._seen, timeout=5)


def follow(path: Path) -> Iterator[list[dict]]:
    """Yield, each time it is asked, the whole records that a metrics file has got since, one of each step.

    A run that goes on begins its file anew, and replaces it at its end by one with the earlier records before its own.
    """
    position, inode, steps = 0, None, set()
    while True:
        complete = b""
        if path.exists():
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != inode or status.st_size < position:
                    position, inode = 0, status.st_ino
                file.seek(position)
                complete = file.read().rpartition(b"\n")[0]
        if complete:
            position += len(complete) + 1
        records = [json.loads(line) for line in complete.splitlines() if line.strip()]
        yield [record for record in records if record["step"] not in steps]
        steps.update(record["step"] for record in records)


class Stages:
    """The stage of its start-up that the run told last in its log."""

    def __init__(self, log: Path):
        self.current = "starting Ray, the trainer and vLLM (about a minute)"
        self._log, self._position = log, 0

    def poll(self) -> str:
        """Read the whole lines that were added to the log since, and name the stage."""
        with self._log.open("rb") as file:
            file.seek(self._position)
            added = file.read().rpartition(b"\n")[0]
        if added:
            self._position += len(added) + 1
        if told := STAGE_LINE.findall(added.decode(errors="replace")):
            self.current = told[-1]
        return self.current


def supervise(command: list[str], steps: int, metrics: Path, log: Path) -> int:
    """Run ``command`` to its end with its output in ``log``; its exit status, or 128 + the signal that ended us.

    Raises:
        OSError: the command cannot be started or the log cannot be written.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = Console()
    with log.open("wb") as output:
        # Its own session: a Ctrl-C on the terminal reaches us alone, and we end the command in order.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    descendants = Descendants(psutil.Process(process.pid))
    try:
        status = _watch(process, descendants, steps, metrics, log, console)
    except Interrupted as interrupted:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        console.print("Interrupted; ending the run.")
        descendants.end(GRACE_SECONDS)
        process.wait()
        for line in remove_leftovers():
            print(f"removed {line}")
        return 128 + interrupted.number
    if status:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_ON_FAILURE:]
        print("\n".join(tail), file=sys.stderr)
        print(f"quickstart: the training ended with status {status}; the whole log is {log}", file=sys.stderr)
    return status


def _watch(
    process: subprocess.Popen, descendants: Descendants, steps: int, metrics: Path, log: Path, console: Console
) -> int:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    records = follow(metrics)
    stages = Stages(log)
    started = spoken = time.monotonic()
    training = False
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(stages.current, total=steps)
        while True:
            status = process.poll()
            descendants.update()
            for record in next(records):
                _show(record, progress, task)
                training = training or REWARD in record["data"]
                spoken = time.monotonic()
            if status is not None:
                return status
            if not training:
                before, now = stages.current, stages.poll()
                progress.update(task, description=now)
                if now != before or time.monotonic() - spoken > SILENT_SECONDS:
                    _say(progress, f"{time.monotonic() - started:4.0f} s: {now}")
                    spoken = time.monotonic()
            elif time.monotonic() - spoken > SILENT_SECONDS:
                _say(progress, f"{time.monotonic() - started:4.0f} s: at work on the next step")
                spoken = time.monotonic()
            time.sleep(POLL_SECONDS)


def _say(progress: Progress, line: str) -> None:
    """Print a line where no bar moves: in a terminal the spinner and the description say as much."""
    if not progress.console.is_terminal:
        progress.console.print(line)


def _show(record: dict, progress: Progress, task) -> None:
    step, data = record["step"], record["data"]
    if (accuracy := validation_accuracy(data)) is not None:
        progress.console.print(f"step {step:>4}: held-out accuracy {accuracy:.1%}")
    if REWARD in data:
        progress.update(task, completed=step, description=f"training, reward {data[REWARD]:.3f}")
        _say(progress, f"step {step:>4}: reward {data[REWARD]:.3f}")


def _signal(processes, number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _interrupt(number: int, frame) -> None:
    raise Interrupted(number)


def main() -> int:
    """Supervise the command after ``--``."""
    parser = argparse.ArgumentParser(description="Run a training command and show its progress.")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--metrics", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("command", nargs="+", metavar="-- command")
    arguments = parser.parse_args()
    return supervise(arguments.command, arguments.steps, arguments.metrics, arguments.log)


if __name__ == "__main__":
    sys.exit(main())
