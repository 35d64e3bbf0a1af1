"""wandb itself, offline: the names of a run, and one run id over a resume."""

import json
import os
import subprocess
import sys

import pytest

from recipes.launch.wandb_run import FILE, store_run_id

ATTEMPT = """
import json, sys
from pathlib import Path
from recipes.launch.wandb_run import store_run_id
store_run_id(Path("checkpoints"), int(sys.argv[1]))
from verl.utils.tracking import Tracking
import wandb
tracking = Tracking("verl-duets", "sppo_toy", ["wandb"], {"trainer": {"total_training_steps": 2}})
run = wandb.run
tracking.log({"critic/score/mean": 0.5}, step=int(sys.argv[1]) + 1)
told = [run.id, run.name, run.project, run.settings.mode, dict(run.config), run.resumed is not None]
tracking.finish()
print("TOLD" + json.dumps(told))
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)


def attempt(folder, step, **environment):
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPT, str(step)],
        cwd=folder,
        env=os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"} | environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert "TOLD" in done.stdout, done.stdout + done.stderr
    return json.loads(done.stdout.split("TOLD")[1].splitlines()[0])


@pytest.mark.timeout(900)
def test_a_resumed_run_goes_on_under_the_same_id_offline(tmp_path):
    first = attempt(tmp_path, 0)
    assert first[1:4] == ["sppo_toy", "verl-duets", "offline"]
    assert first[4]["trainer"] == {"total_training_steps": 2}
    resumed = attempt(tmp_path, 1)
    assert resumed[0] == first[0] == (tmp_path / "checkpoints" / FILE).read_text().strip()
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*-{first[0]}"))) == 2


def test_a_run_that_starts_over_gets_another_id(tmp_path, monkeypatch):
    first = store_run_id(tmp_path, 0)
    monkeypatch.delenv("WANDB_RUN_ID")
    assert store_run_id(tmp_path, 3) == first
    monkeypatch.delenv("WANDB_RUN_ID")
    assert store_run_id(tmp_path, 0) != first


def test_an_id_of_the_user_wins_and_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    monkeypatch.setenv("WANDB_RESUME", "must")
    assert store_run_id(tmp_path, 0) == "mine" and os.environ["WANDB_RESUME"] == "must"
    monkeypatch.delenv("WANDB_RUN_ID")
    assert store_run_id(tmp_path, 2) == "mine"
