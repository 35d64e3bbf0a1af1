"""One run of a recipe on the toy world, cut short again and again by one command, and what must be true at its end.

A campaign owns a folder. `attempt` starts the recipe there; whoever calls it decides which process to hit and when;
`violations` reads what the attempts left together: exit code, steps, metrics, checkpoints, prompts of each step,
journals, processes, shared memory, sockets, temporary files.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import psutil

from recipes.core.requests import tag_of
from recipes.launch import leftovers, resume

REPOSITORY = Path(__file__).resolve().parents[2]
_COMMON = ("scale=toy", "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=1")
_SMALL = ("data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=16", "data.val_max_samples=16")
# Of each recipe: the format of its toy world, and overrides for short steps.
RECIPES: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "sppo": (None, (*_SMALL, "preset=grpo")),
    "tandem": (None, (*_SMALL, "preset=tandem")),
    "serl": (
        "serl",
        (
            "data.train_batch_size=8",
            "actor_rollout_ref.rollout.n=8",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32",
        ),
    ),
    "pasodoble": ("pasodoble", ("pasodoble.rounds_per_step=2", "pasodoble.log_problems_every=1")),
    # Without a PRM the critic starts from the policy.
    "step_ppo": ("step_ppo", (*_SMALL, "preset=outcome", "critic.model.path=${oc.env:TOY_DIR}/model")),
}
# Their prompts are what their models write, so that other weights give others.
SELF_MADE = ("serl", "pasodoble")
# What a fault may hit: the driver itself, or a process of the run by a part of its title.
VICTIMS = {
    "driver": None,
    "task runner": "ray::TaskRunner",
    "training worker": "ray::WorkerDict",
    "rollout server": "HttpServer",
    "engine core": "VLLM::EngineCore",
    "agent loop worker": "ray::AgentLoopWorker",
    "reward worker": "ray::RewardLoopWorker",
    "reward pool": "reward_fns.forked_worker",
    "Ray head": "gcs_server",
}
# A moment of a step: the method that some actor runs then, by its title.
MOMENTS = {
    "rollout": None,
    "update": "update_actor",
    "sync": "update_weights",
    "save": "save_checkpoint",
}
# An asynchronous actor keeps its title while it runs a method. This one works in rollouts only, for longer than that.
ROLLOUT_ACTOR, ROLLOUT_SECONDS = "ray::AgentLoopWorker", 0.1


@dataclass
class Attempt:
    """One start of the command."""

    process: subprocess.Popen
    log: Path

    def processes(self) -> list[psutil.Process]:
        """All processes below the driver."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def titled(self, text: str, processes: list[psutil.Process] | None = None) -> psutil.Process | None:
        """A process of the run whose title or command line has this text."""
        for process in processes or self.processes():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if text in " ".join(process.cmdline()):
                    return process
        return None

    def wait_for_title(self, text: str, seconds: float) -> bool:
        """Until some process of the run is called so; False when the run or the time ends before.

        A toy's worker saves in 30 ms, which is as long as a list of the processes takes: it is made once a second.
        """
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            processes, old = self.processes(), time.monotonic() + 1
            while time.monotonic() < old:
                if self.titled(text, processes):
                    return True
                time.sleep(0.005)
        return False

    def wait_for_moment(self, moment: str, seconds: float) -> bool:
        """Until a moment of :data:`MOMENTS` has come; False when the run or the time ends before."""
        title = MOMENTS[moment]
        if title is not None:
            return self.wait_for_title(title, seconds)
        before, deadline = self.cpu_seconds(ROLLOUT_ACTOR), time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            if self.cpu_seconds(ROLLOUT_ACTOR) - before > ROLLOUT_SECONDS:
                return True
            time.sleep(0.02)
        return False

    def cpu_seconds(self, text: str) -> float:
        """CPU time that the processes with this text in their title have used."""
        total = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if text in " ".join(process.cmdline()):
                    times = process.cpu_times()
                    total += times.user + times.system
        return total

    def hit(self, victim: str, number: int) -> bool:
        """Send a signal to a victim; False when the run has no such process at this moment."""
        text = VICTIMS[victim]
        target = psutil.Process(self.process.pid) if text is None else self.titled(text)
        if target is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            target.send_signal(number)
            return True
        return False

    def kill_everything(self) -> None:
        """SIGKILL of every process of the run at once, as a machine that goes down."""
        for process in [psutil.Process(self.process.pid), *self.processes()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


@dataclass
class Campaign:
    """The attempts at one run.

    Attributes:
        recipe: key of :data:`RECIPES`.
        folder: an empty folder, which becomes the working folder of every attempt.
        steps: at which the run ends.
        more: overrides beside the recipe's.
    """

    recipe: str
    folder: Path
    steps: int
    more: tuple[str, ...] = ()
    codes: list[int] = field(default_factory=list)
    _began: float = field(default_factory=time.time)
    _killed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Ray's own logs are artefacts, too; the path of its sockets has to be short.
        self.ray = Path(tempfile.mkdtemp(prefix="faults_", dir="/tmp"))
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))
        } | {
            "TOY_DIR": str(toy_world(RECIPES[self.recipe][0])),
            "VERL_FILE_LOGGER_PATH": str(self.metrics),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "RAY_TMPDIR": str(self.ray),
        }

    def _state(self):
        """A context in which the records are those of this campaign's runs."""
        return mock.patch.dict(os.environ, XDG_STATE_HOME=self.environment["XDG_STATE_HOME"])

    def close(self) -> None:
        """End what is left of the attempts and remove Ray's logs."""
        with self._state():
            leftovers.remove_leftovers()
        shutil.rmtree(self.ray, ignore_errors=True)

    def artefacts(self) -> list[Path]:
        """Every file that the attempts have written, Ray's logs with them."""
        return [path for root in (self.folder, self.ray) for path in root.rglob("*") if path.is_file()]

    @property
    def metrics(self) -> Path:
        """What verl's file logger writes."""
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """`trainer.default_local_dir`."""
        return self.folder / "checkpoints"

    def attempt(self) -> Attempt:
        """Start the command, which is the same each time."""
        with self._state():
            self._killed |= {run.name for run in leftovers.dead_runs()}
        log = self.folder / "log.txt"
        command = [sys.executable, "-m", f"recipes.{self.recipe}.main", *_COMMON, *RECIPES[self.recipe][1], *self.more]
        command += [f"trainer.total_training_steps={self.steps}", f"trainer.default_local_dir={self.checkpoints}"]
        if self.recipe not in SELF_MADE:
            command += [f"trainer.rollout_data_dir={self.folder / 'rollouts'}"]
        with log.open("ab") as stream:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Attempt(process, log)

    def finish(self, seconds: float) -> int:
        """Start once more and let the run come to its end."""
        return self.wait(self.attempt(), seconds)

    def wait(self, attempt: Attempt, seconds: float) -> int:
        """The exit code of an attempt; a hang is killed and counts as -9."""
        try:
            code = attempt.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            attempt.kill_everything()
            code = -signal.SIGKILL
        self.codes.append(code)
        return code

    def logged(self) -> dict[int, dict]:
        """Metrics by step; a line that is being written is left out."""
        found: dict[int, dict] = {}
        for path in (resume.history_file(self.metrics), self.metrics):
            for line in path.read_text().splitlines() if path.is_file() else ():
                with contextlib.suppress(ValueError):
                    record = json.loads(line)
                    found.setdefault(record["step"], {}).update(record["data"])
        return found

    def prompts(self) -> dict[int, Counter]:
        """The prompts that each step trained on, from verl's dump of rollouts; {} for a recipe that dumps none."""
        found = {}
        for path in (self.folder / "rollouts").glob("*.jsonl"):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            found[int(path.stem)] = Counter(row["input"] for row in rows)
        return found

    def violations(self) -> list[str]:
        """What is not as it must be after the last attempt has ended by itself, one sentence each."""
        found = []
        if self.codes[-1] != 0:
            found.append(f"the last attempt ended with code {self.codes[-1]}; see {self.folder / 'log.txt'}")
        text = self.metrics.read_text() if self.metrics.is_file() else ""
        lines = [json.loads(line)["step"] for line in text.splitlines()]
        if lines != list(range(1, self.steps + 1)):
            found.append(f"the metrics have steps {lines}")
        step, mended = resume.resume_step(self.checkpoints)
        if step != self.steps or mended:
            found.append(f"the last complete checkpoint is {step}, {mended}")
        found += self._journal_faults()
        with self._state():
            found += [f"a record of a run is left: {run.name}" for run in leftovers.dead_runs()]
        found += [f"a process of a run is left: {process}" for process in leftovers.processes_of(self._killed)]
        found += [f"left behind: {path}" for run in self._killed for path in Path("/tmp").glob(f"*{tag_of(run)}.sock")]
        found += [f"left behind: {path}" for path in weights_left(self._began)]
        found += [f"left behind: {path}" for path in self.folder.rglob("*.partial")]
        return found

    def _journal_faults(self) -> list[str]:
        problems = self.checkpoints / "problems.jsonl"
        if problems.is_file():
            steps = [json.loads(line)["step"] for line in problems.read_text().splitlines()]
            if steps != sorted(steps) or set(steps) > set(range(1, self.steps + 1)):
                return [f"problems.jsonl has steps out of order: {steps}"]
        journal = self.checkpoints / "filtered_data"
        if journal.is_dir():
            records = [json.loads(line) for path in journal.glob("*.jsonl") for line in path.read_text().splitlines()]
            numbers = Counter(record["idx"] for record in records if record["idx"] is not None)
            doubled = sorted(number for number, count in numbers.items() if count > 1)
            lost = sorted(set(range(max(numbers, default=-1) + 1)) - numbers.keys())
            return [f"the journals hold {doubled} twice and lack {lost}"] if doubled or lost else []
        return []


def toy_world(world: str | None) -> Path:
    """A recipe's toy world, made once and kept between campaigns."""
    out = REPOSITORY / "outputs" / ("toy" if world is None else f"toy_{world}")
    make = [sys.executable, str(REPOSITORY / "examples/toy/make.py"), "--out", str(out), "--seed", "0"]
    subprocess.run(make + (["--format", world] if world else []), check=True, timeout=1800, stdout=subprocess.DEVNULL)
    return out


def weights_left(since: float) -> set[str]:
    """Weight segments written since then that nobody maps; another run's are unmapped for a moment only."""
    found = set(leftovers.unmapped("verl_weights_*", since))
    if found:
        time.sleep(3)
        found &= set(leftovers.unmapped("verl_weights_*", since))
    return {str(path) for path in found}
