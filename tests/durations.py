"""Run pytest as one lane of `tests/run.sh`: `python -P tests/durations.py LANE ARGUMENTS...`.

Beside what pytest prints, outputs/durations_LANE.tsv gets the seconds and CPU seconds of every test file,
outputs/failed_first.txt a line for each test that failed, also where a second, lone attempt passes. RANDOM_ORDER=SEED
shuffles the files, and the tests of each. A lane that takes longer than LIMIT seconds prints every thread's stack and
fails, alone after a third of it; with --long there is no such limit.
"""

import faulthandler
import os
import random
import signal
import sys
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

OUTPUTS = Path("outputs").absolute()  # a test may fail in another folder
LIMIT = 3000


class Lane:
    """A plugin of pytest."""

    def __init__(self, name: str):
        self.name, self.seconds, self.cpu, self.tests = name, Counter(), Counter(), Counter()
        self.cpu_before = 0.0
        # A copy: pytest takes the stream itself.
        self.ends, self.stderr = time.monotonic() + (LIMIT / 3 if name.endswith("_again") else LIMIT), os.dup(2)

    def limit(self) -> None:
        """Also in C, where pytest's limit of a test ends nothing."""
        if "--long" not in sys.argv:
            faulthandler.dump_traceback_later(max(1.0, self.ends - time.monotonic()), exit=True, file=self.stderr)

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        self.limit()  # a failed test has taken it away, for pytest's debugger

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        seed = os.environ.get("RANDOM_ORDER")
        if not seed:
            return
        generator = random.Random(seed)
        files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
        generator.shuffle(files)
        for tests in files:
            generator.shuffle(tests)
        items[:] = [item for tests in files for item in tests]

    def pytest_collection_finish(self) -> None:
        self.cpu_before = sum(os.times()[:4])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration
        # Of this process and of those it has waited for.
        used = sum(os.times()[:4])
        self.cpu[file] += used - self.cpu_before
        self.cpu_before = used
        self.tests[file] += report.when == "call"
        if report.failed:
            with (OUTPUTS / "failed_first.txt").open("a") as log:
                log.write(f"{time.strftime('%F %T')} {self.name} {report.when} {report.nodeid}\n")

    def pytest_sessionfinish(self) -> None:
        lines = [
            f"{seconds:.1f}\t{self.cpu[file]:.1f}\t{self.tests[file]}\t{self.name}\t{file}"
            for file, seconds in self.seconds.items()
        ]
        (OUTPUTS / f"durations_{self.name}.tsv").write_text("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    # In the background of a script it is ignored; so that fixtures clean up after one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # As `python -m pytest` does.
    sys.path.insert(0, os.getcwd())
    OUTPUTS.mkdir(exist_ok=True)
    lane = Lane(sys.argv[1])
    lane.limit()
    code = pytest.main(sys.argv[2:], plugins=[lane])
    sys.stdout.flush()
    # No exit of the interpreter's own: a thread or a socket that a test left behind can keep it for ever.
    os._exit(code)
