"""The GPU script itself, as far as a machine without one can run it, so that it stays one that runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
import stages  # noqa: E402


def run(tmp_path, *arguments):
    environment = os.environ | {
        "GPU_RESULTS": str(tmp_path / "gpu"),
        "PYTHON": sys.executable,
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = ["bash", str(ROOT / "tests/gpu/run.sh"), *arguments]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.timeout(300)
def test_a_stage_runs_and_one_that_needs_a_gpu_is_skipped_with_the_reason(tmp_path):
    done = run(tmp_path, "install", "decoder")
    records = [json.loads(line) for line in (tmp_path / "gpu/results.jsonl").read_text().splitlines()]
    assert [record["stage"] for record in records] == ["install", "decoder"]
    assert records[0]["step"] == "doctor" and records[0]["seconds"] > 0
    assert records[0]["ok"] and done.returncode == 0, Path(records[0]["log"]).read_text()
    assert "verl" in Path(records[0]["log"]).read_text(), "the doctor must have said something"
    assert records[1]["skipped"] == "torch has no GPU here"
    summary = (tmp_path / "gpu/summary.md").read_text()
    assert "| install | doctor | " in summary and "skipped: torch has no GPU here" in summary


def test_an_unknown_stage_is_refused(tmp_path):
    done = run(tmp_path, "decodr")
    assert done.returncode == 2 and "there are install, memory, decoder" in done.stderr


def test_a_step_that_fails_or_hangs_is_recorded_and_does_not_stop_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "OUT", tmp_path)
    python = [sys.executable, "-c"]
    slow = stages.measure("s", stages.Step("slow", [*python, "import time; time.sleep(60)"], 1))
    bad = stages.measure("s", stages.Step("bad", [*python, "raise SystemExit(3)"], 30))
    assert (slow["ok"], slow["code"], bad["ok"], bad["code"]) == (False, 124, False, 3)
    stages.write(slow)
    stages.write(bad)
    assert "failed (124)" in (tmp_path / "summary.md").read_text()


def test_no_step_sets_a_variable_that_vllm_does_not_read():
    envs = pytest.importorskip("vllm.envs")
    named = {name for stage in stages.stages().values() for step in stage.steps for name in step.environment}
    assert {name for name in named if name.startswith("VLLM_")} <= set(envs.environment_variables)


def test_the_metrics_of_both_roles_are_kept(tmp_path):
    lines = [
        {"step": 1, "data": {"timing_s/step": 2.0}},
        {"step": 2, "data": {"proposer/actor/grad_norm": 1.0, "x": 3}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert stages.run_metrics(tmp_path) == {"timing_s/step": 2.0, "proposer/actor/grad_norm": 1.0}
