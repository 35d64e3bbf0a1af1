"""What the start-up report says, from the titles of a run's processes."""

import os
import subprocess
import sys
import time

import pytest

from recipes.lifecycle import leftovers
from recipes.lifecycle.progress import Progress, stage, titles_of

WORKERS = ["python -m recipes.sppo.main", "/x/raylet --a", "ray::TaskRunnerV1.run", "ray::WorkerDict.ref_init_model"]


@pytest.mark.parametrize(
    ("titles", "what", "over"),
    [
        (WORKERS[:1], "Ray starts", False),
        (WORKERS[:2], "Ray has started", False),
        (WORKERS[:3], "the task runner starts", False),
        (WORKERS, "the training workers load the model", False),
        ([*WORKERS[:3], "ray::WorkerDict", "ray::vLLMHttpServer.launch_server"], "the rollout engines start", False),
        ([*WORKERS[:3], "VLLM::EngineCore", "ray::WorkerDict"], "the rollout engines load the model", False),
        ([*WORKERS[:3], "VLLM::EngineCore", "ray::AgentLoopWorkerTQ.generate_sequences"], "the first rollouts", True),
    ],
)
def test_the_last_stage_that_shows_is_told(titles, what, over):
    told, ended = stage(titles)
    assert told.startswith(what) and ended is over


def test_a_stage_is_told_once_and_again_when_it_lasts(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("VERL_DUETS_RUN", "")
    run = leftovers.begin_run()
    child = "import sys, time; time.sleep(60)  # init_model"
    process = subprocess.Popen([sys.executable, "-c", child], env=os.environ)
    lines = []
    progress = Progress("sppo", run, poll=0.05, repeat=0.5, say=lines.append)
    try:
        deadline = time.monotonic() + 20
        while not titles_of(run) and time.monotonic() < deadline:
            time.sleep(0.05)
        progress.start()
        while len(lines) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        progress.stop()
        process.kill()
        process.wait()
        leftovers.end_run(run)
    assert lines[0].startswith("sppo: the training workers load the model (0 s)")
    assert len(lines) >= 3 and all("load the model" in line for line in lines)
