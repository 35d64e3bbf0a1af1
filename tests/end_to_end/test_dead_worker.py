"""A worker that dies ends the run with a sentence and a non-zero exit, soon; nothing of the run stays behind.

The same of an engine's own worker is a part of `test_tandem.py`, which runs in every CI.
"""

import time

import psutil
import pytest

from recipes.launch import leftovers

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]
LIMIT_SECONDS = 120


def process_titled(run, title: str) -> psutil.Process:
    for process in run.descendants():
        try:
            if title in " ".join(process.cmdline()):
                return process
        except psutil.NoSuchProcess:
            continue
    raise LookupError(f"no process of the run is called {title}")


@pytest.mark.parametrize("title", ["VLLM::EngineCore", "ray::AgentLoopWorkerTQ"])
def test_the_run_ends(start, small, title):
    run = start("recipes.sppo.main", *small, "preset=grpo", "trainer.total_training_steps=50")
    run.wait_for_step(1)
    family = run.descendants()
    process_titled(run, title).kill()
    killed = time.monotonic()
    assert run.wait(LIMIT_SECONDS) not in (0, None)
    assert time.monotonic() - killed < LIMIT_SECONDS
    assert "died" in run.log or "run failed" in run.log
    weights = set(leftovers.unmapped("verl_weights_*"))
    time.sleep(3)
    assert not weights & set(leftovers.unmapped("verl_weights_*")), "those of another run do not stay unmapped"
    # A process that has gone has no descendants, so those from before the kill are asked; Ray's own take their time.
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
