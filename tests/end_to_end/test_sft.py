"""The supervised starts as their launchers run them: killed after an epoch, the same command trains the others."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from recipes.core.files import write_parquet
from recipes.pasodoble.cold_start.records import write_dataset

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]
REPOSITORY = Path(__file__).resolve().parents[2]
EPOCHS, STEPS_PER_EPOCH, BATCH = 3, 6, 4
SUMS = [(a, a * a % 83) for a in range(10, 10 + STEPS_PER_EPOCH * BATCH)]


def for_pasodoble(folder: Path, model: Path) -> tuple[str, dict[str, str]]:
    """The launcher and its variables, with records in ``folder``."""
    turns = [(f"{a} + {b} =", f"\\boxed{{{a + b}}}") for a, b in SUMS]
    records = [
        {"conversations": [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]}
        for asked, told in turns
    ]
    write_dataset(folder, "solver_pasodoble_sft", records)
    variables = {"ROLE": "solver", "MODEL_PATH": str(model), "DATA_DIR": str(folder), "BATCH_SIZE": str(BATCH)}
    return "recipes/pasodoble/run_sft.sh", variables | {"MAX_LENGTH": "128"}


def for_step_ppo(folder: Path, model: Path) -> tuple[str, dict[str, str]]:
    write_parquet(folder / "sft.parquet", [{"prompt": f"{a} + {b} =", "response": f" {a + b}"} for a, b in SUMS])
    variables = {"BASE_MODEL": str(model), "SFT_FILES": str(folder / "sft.parquet"), "BATCH": str(BATCH)}
    return "recipes/step_ppo/run_sft.sh", variables


class Training:
    """A launcher with its arguments; each call is one process group."""

    def __init__(self, launcher: str, variables: dict[str, str], folder: Path):
        folder.mkdir()
        self.folder, self.log = folder, folder / "log.txt"
        self.command = ["bash", str(REPOSITORY / launcher), "trainer.max_ckpt_to_keep=null"]
        own = {"EPOCHS": str(EPOCHS), "LR": "1e-3", "NGPUS": "1", "OUTPUT": str(folder), "OUTPUT_DIR": str(folder)}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path} | variables | own

    def start(self) -> subprocess.Popen:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self) -> None:
        process = self.start()
        try:
            assert process.wait(timeout=300) == 0, self.log.read_text(errors="replace")[-4000:]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def kill_after_the_first_epoch(self) -> None:
        process = self.start()
        deadline = time.monotonic() + 280
        while not self.saved_steps() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
        assert 0 < self.saved_steps() < EPOCHS * STEPS_PER_EPOCH, self.log.read_text(errors="replace")[-4000:]

    def saved_steps(self) -> int:
        tracker = self.folder / "latest_checkpointed_iteration.txt"
        return int(tracker.read_text()) if tracker.is_file() else 0

    def file(self, step: int) -> Path:
        return self.folder / f"global_step_{step}" / "huggingface" / "model.safetensors"

    def weights(self, step: int) -> dict:
        return load_file(self.file(step))


@pytest.mark.parametrize("prepare", [for_pasodoble, for_step_ppo])
def test_a_killed_start_trains_every_epoch_once(prepare, toy_world, tmp_path):
    """Against one that nobody killed; and what is finished is not trained again."""
    launcher, variables = prepare(tmp_path, toy_world / "model")
    whole = Training(launcher, variables, tmp_path / "whole")
    whole.finish()
    last = EPOCHS * STEPS_PER_EPOCH
    assert whole.saved_steps() == last

    killed = Training(launcher, variables, tmp_path / "killed")
    killed.kill_after_the_first_epoch()
    killed.finish()
    assert killed.saved_steps() == last
    made, wanted, early = killed.weights(last), whole.weights(last), whole.weights(STEPS_PER_EPOCH)
    assert made.keys() == wanted.keys()
    assert all(made[name].equal(wanted[name]) for name in wanted)
    assert any(not early[name].equal(wanted[name]) for name in wanted)

    written = killed.file(last).stat().st_mtime_ns
    killed.finish()
    assert killed.saved_steps() == last and killed.file(last).stat().st_mtime_ns == written
