"""A scheduler's signals to a real run: saved and going on, saved and ended, abandoned; and the run that comes after."""

import os
import signal

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]


def test_save_end_and_go_on(start, small):
    """SIGUSR1 saves, Ctrl-C at a terminal (the whole process group) saves and ends, the same command goes on."""
    arguments = [*small, "preset=grpo", "trainer.total_training_steps=8", "trainer.default_local_dir=checkpoints"]
    first = start("recipes.sppo.main", *arguments)
    first.wait_for_step(1)
    checkpoints = first.folder / "checkpoints"
    first.process.send_signal(signal.SIGUSR1)
    first.wait_for_text("is saved, as asked")
    (saved,) = checkpoints.glob("global_step_*")
    step = int(saved.name.rpartition("_")[2])
    first.wait_for_step(step + 1)
    os.killpg(first.process.pid, signal.SIGINT)
    assert first.wait(120) == 75, first.log[-6000:]
    before = first.metrics()
    stopped = max(before)
    assert step < stopped < 8 and sorted(before) == list(range(1, stopped + 1))
    assert f"ended after step {stopped}, as asked" in first.log
    assert (checkpoints / "latest_checkpointed_iteration.txt").read_text() == str(stopped)
    assert not [process for process in first.descendants() if process.is_running()]

    second = start("recipes.sppo.main", *arguments)
    assert second.wait() == 0, second.log[-6000:]
    assert f"setting global step to {stopped}" in second.log
    metrics = second.metrics()
    assert sorted(metrics) == list(range(1, 9))
    assert all(metrics[number] == before[number] for number in before)


def test_asked_twice_the_step_is_given_up(start, small):
    arguments = [*small, "preset=grpo", "trainer.total_training_steps=3", "trainer.default_local_dir=checkpoints"]
    first = start("recipes.sppo.main", *arguments, "trainer.save_freq=1")
    first.wait_for_step(1)
    first.process.send_signal(signal.SIGTERM)
    first.wait_for_text("exits with code 75")
    first.process.send_signal(signal.SIGTERM)
    # Unless the step was just over.
    assert first.wait(120) in (143, 75), first.log[-6000:]
    second = start("recipes.sppo.main", *arguments, "trainer.save_freq=1")
    assert second.wait() == 0, second.log[-6000:]
    assert sorted(second.metrics()) == [1, 2, 3]
