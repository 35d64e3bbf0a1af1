"""The toy world, and real runs of a recipe as a user starts them: a process, its log, its metrics."""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet
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
HANGS_AFTER = 580.0
"""Seconds. A training of a few steps takes a minute alone on two cores, and a few times that beside other work."""


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

    def wait_until(self, condition: Callable[[], object], seconds: float = HANGS_AFTER) -> None:
        """Wait for something that the running process does; its end or the time's is a failure with the log."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log[-6000:]
            assert time.monotonic() < deadline, self.log[-6000:]
            time.sleep(0.1)

    def wait_for_step(self, step: int, seconds: float = HANGS_AFTER) -> None:
        self.wait_until(lambda: step in self.metrics(), seconds)

    def wait_for_text(self, text: str, seconds: float = HANGS_AFTER) -> None:
        self.wait_until(lambda: text in self.log, seconds)

    def wait(self, seconds: float = HANGS_AFTER) -> int:
        """The exit code; a hang is a failure with the log."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {seconds:.0f} s\n{self.log[-6000:]}") from None

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
def world() -> Callable[[str], Path]:
    """Makes the toy world of a recipe, once; it is kept between sessions."""

    @functools.cache
    def make(recipe: str) -> Path:
        own_format = recipe not in ("sppo", "tandem")
        out = REPOSITORY / "outputs" / (f"toy_{recipe}" if own_format else "toy")
        command = [sys.executable, str(REPOSITORY / "examples/toy/make.py"), "--out", str(out), "--seed", "0"]
        command += ["--format", recipe] if own_format else []
        subprocess.run(command, check=True, timeout=1200, stdout=subprocess.DEVNULL)
        return out

    return make


@pytest.fixture(scope="session")
def toy_world(world) -> Path:
    """The world of SPPO and tandem."""
    return world("sppo")


@pytest.fixture(scope="session")
def padded_world(toy_world, tmp_path_factory) -> Path:
    """The toy world with a model as Qwen's are: 64 logits that its tokenizer does not know, and two ids that end."""
    from transformers import AutoModelForCausalLM

    folder = shutil.copytree(toy_world, tmp_path_factory.mktemp("padded"), dirs_exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    model.resize_token_embeddings(model.config.vocab_size + 64, mean_resizing=False)
    ends = [model.generation_config.eos_token_id, model.generation_config.pad_token_id]
    assert None not in ends and ends[0] != ends[1]
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder / "model")
    return folder


@pytest.fixture
def start(toy_world, tmp_path, monkeypatch):
    """Start ``python -m MODULE overrides...``, or a launcher, in a folder of its own; its end is that of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runs: list[Run] = []
    seen: list[psutil.Process] = []

    def begin(module: str, *overrides: str, environment: dict[str, str] | None = None) -> Run:
        cleared = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
        script = module.endswith(".sh")
        command = ["bash", str(REPOSITORY / module)] if script else [sys.executable, "-m", module]
        cleared["PATH"] = f"{Path(sys.executable).parent}:{cleared['PATH']}"
        variables = {"TOY_DIR": str(toy_world), "VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl")}
        with (tmp_path / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [*command, *overrides],
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
    if runs:
        # pytest shows it where the test has failed.
        print(runs[0].log[-6000:])
    from recipes.launch import leftovers

    leftovers.remove_leftovers()
    for process in seen:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture(scope="session")
def step_world(world) -> Path:
    return world("step_ppo")


@pytest.fixture(scope="session")
def step_folder(step_world, tmp_path_factory) -> Path:
    """A folder with `round0/prm`."""
    folder = tmp_path_factory.mktemp("step_ppo")
    train_prm(step_world, folder)
    return folder


def train_prm(step_world: Path, folder: Path) -> None:
    """Train a PRM with the `prm` stage on worked solutions and on ones that slip once, into `folder`/round0/prm.

    The rule of the puzzle gives the labels, so that no sampling is needed here.
    """
    trajectories, values = [], []
    for row in pyarrow.parquet.read_table(step_world / "train.parquet").to_pylist()[:160]:
        key = str(row["extra_info"]["index"])
        right = worked(row["extra_info"]["chain"], row["prompt"][0]["content"])
        lines = right.split("\n")
        slip = 2 * (len(lines) // 4)
        found = lines[slip].rpartition(" ")[2]
        wrong = [*lines[:slip], lines[slip].removesuffix(found) + ("east." if found == "west." else "west.")]
        responses = [{"text": right, "correct": True}, {"text": "\n".join(wrong + lines[slip + 1 :]), "correct": False}]
        trajectories.append({"key": key, "id": key, "responses": responses})
        for index, (response, hits) in enumerate(zip(responses, (3, 0), strict=True)):
            prefix = "\n".join(response["text"].split("\n")[: slip + 1])
            values.append(
                {"key": f"{key}/{index}", "id": key, "response_index": index, "step": slip, "kind": "Observation"}
                | {"value": hits, "num_completions": 3, "prefix_length": len(prefix)}
            )
    for name, records in (("trajectories", trajectories), ("values", values)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    subprocess.run(
        [sys.executable, "-m", "recipes.step_ppo.pipeline.prm", "--data", str(step_world / "train.parquet")]
        + ["--trajectories", str(folder / "trajectories.jsonl"), "--values", str(folder / "values.jsonl")]
        + ["--model", str(step_world / "model"), "--output", str(folder / "round0" / "prm"), "--export-backbone"]
        + ["--dtype", "float32", "--max-length", "160", "--learning-rate", "1e-3", "--warmup-steps", "2"]
        + ["--batch-size", "32", "--accumulation", "1", "--max-steps", "20"],
        check=True,
        timeout=600,
        stdout=subprocess.DEVNULL,
    )


def worked(chain: list[str], prompt: str) -> str:
    """The response that the puzzle's rule gives, without the space that joins it to the prompt."""
    sys.path.insert(0, str(REPOSITORY / "examples" / "toy"))
    from toy_world.formats import step_ppo

    direction, *turns = chain
    names = [fact.split(" ")[0] for fact in prompt.split("\n")[1].split(". ")]
    lines = [f"{names[0]} faces {direction}."]
    for number, (name, turn) in enumerate(zip(names[1:], turns, strict=True), 1):
        found = step_ppo.turned(direction, turn)
        lines += [f"Action {number}: Find {name}.", f"Observation {number}: {turn} of {direction} is {found}."]
        direction = found
    letter = step_ppo.LETTERS[step_ppo.DIRECTIONS.index(direction)]
    last = len(turns) + 1
    lines += [f"Thought {last}: {names[-1]} faces {direction}.", f"Action {last}: Finish[The answer is {letter}.]"]
    return "\n".join(lines)
