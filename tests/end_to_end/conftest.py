"""The toy world, and real runs of a recipe as a user starts them: a process, its log, its metrics."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = (
    "scale=toy",
    "data.train_batch_size=32",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "data.val_max_samples=32",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
)


@dataclass
class Run:
    """One running recipe."""

    process: subprocess.Popen
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text(errors="replace")

    def metrics(self) -> dict[int, dict]:
        """What verl's file logger has written, by step (it may write twice); a line being written is left out."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        records = {}
        for line in lines:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                records.setdefault(record["step"], {}).update(record["data"])
        return records

    def wait_for_step(self, step: int, seconds: float = 420.0) -> None:
        deadline = time.monotonic() + seconds
        while step not in self.metrics():
            assert self.process.poll() is None, self.log[-6000:]
            assert time.monotonic() < deadline, self.log[-6000:]
            time.sleep(0.2)

    def wait(self, seconds: float = 420.0) -> int:
        return self.process.wait(timeout=seconds)

    def kill(self) -> None:
        """SIGKILL of the driver, as a scheduler or the kernel would."""
        self.process.kill()
        self.process.wait()

    def descendants(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []


@pytest.fixture
def small() -> tuple[str, ...]:
    """Overrides for steps of a few seconds: 32 prompts, no validation, no checkpoints."""
    return SMALL


@pytest.fixture(scope="session")
def toy_world() -> Path:
    """The toy world of examples/toy, made once and cached between sessions."""
    out = REPOSITORY / "outputs" / "toy"
    subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / "toy" / "make.py"), "--out", str(out), "--seed", "0"],
        check=True,
        timeout=900,
        stdout=subprocess.DEVNULL,
    )
    return out


@pytest.fixture
def start(toy_world, tmp_path, monkeypatch):
    """Start ``python -m MODULE overrides...`` in a folder of its own; whatever is left at the end of the test is
    killed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runs: list[Run] = []
    seen: list[psutil.Process] = []

    def begin(module: str, *overrides: str, environment: dict[str, str] | None = None) -> Run:
        cleared = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
        variables = {"TOY_DIR": str(toy_world), "VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl")}
        with (tmp_path / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *overrides],
                cwd=tmp_path,
                env=cleared | variables | (environment or {}),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        run = Run(process, tmp_path)
        runs.append(run)
        return run

    yield begin
    for run in runs:
        seen += run.descendants()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.process.pid, signal.SIGKILL)
        run.process.wait()
    from recipes.lifecycle import leftovers

    leftovers.remove_leftovers()
    for process in seen:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
