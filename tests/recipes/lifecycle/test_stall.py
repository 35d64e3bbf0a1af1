"""What is said of a run that stands still, and of one that only takes its time."""

import subprocess
import sys
import time

import psutil
import pytest

from recipes.lifecycle import stall, watchdog
from recipes.lifecycle.stall import Process, Stall

RUNNER = (1, Process("ray::TaskRunner.run", False, 5.0))


def run(*titles: str, cpu: float = 0.0, stopped: str = "") -> dict[int, Process]:
    return dict([RUNNER]) | {n: Process(title, title == stopped, cpu) for n, title in enumerate(titles, 2)}


def test_a_change_of_calls_is_progress():
    look = Stall(limit=100, report=50)
    assert look.look(run("ray::WorkerDict.actor_rollout_update_actor"), 0) == ("", False)
    assert look.look(run("ray::WorkerDict.actor_rollout_update_actor"), 49) == ("", False)
    assert look.look(run("ray::WorkerDict.actor_rollout_save_checkpoint"), 51) == ("", False)
    assert look.look(run("ray::WorkerDict.actor_rollout_save_checkpoint"), 100) == ("", False)


@pytest.mark.parametrize(
    ("title", "stage"),
    [
        ("ray::AgentLoopWorkerTQ.generate_sequences", "rollout"),
        ("ray::RewardLoopWorker.compute_score", "reward"),
        ("ray::WorkerDict.actor_rollout_update_weights", "sync"),
        ("ray::WorkerDict.actor_rollout_save_checkpoint", "save"),
        ("ray::WorkerDict.ref_init_model", "init"),
        ("ray::WorkerDict.actor_rollout_load_checkpoint", "load"),
        ("ray::Somebody.does_something", "unknown"),
    ],
)
def test_the_stage_the_actor_and_its_processor_time_are_named(title, stage):
    look = Stall(limit=1000, report=50)
    look.look(run(title, "VLLM::EngineCore", cpu=3.0), 0)
    told, end = look.look(run(title, "VLLM::EngineCore", cpu=45.0), 60)
    assert not end and f"for 60 s in the stage {stage}: " in told
    assert f"{title} (pid 2, 42 s of CPU)" in told and "VLLM::EngineCore (pid 3, 42 s of CPU)" in told
    assert look.look(run(title, "VLLM::EngineCore", cpu=45.0), 70) == ("", False), "not again at once"
    told, end = look.look(run(title, "VLLM::EngineCore", cpu=45.0), 1000)
    assert end and "VERL_DUETS_STALL_SECONDS=1000" in told


def test_a_run_between_calls_or_before_them_is_not_judged():
    look = Stall(limit=10, report=5)
    look.look(run(), 0)
    assert look.look(run("ray::WorkerDict", "python -m recipes.sppo.main"), 100) == ("", False)


def test_a_stopped_process_is_named_after_its_time_and_forgiven_when_it_goes_on():
    look, title = Stall(stopped=60), "VLLM::EngineCore"
    assert look.look(run(title, stopped=title), 0) == ("", False)
    assert look.look(run(title), 30) == ("", False)
    assert look.look(run(title, stopped=title), 59) == ("", False)
    assert look.look(run(title, stopped=title), 100) == ("", False)
    assert look.look(run(title, stopped=title), 119) == ("VLLM::EngineCore (pid 2) has been stopped for 60 s", True)


def test_the_watchdog_sees_a_real_process_that_is_stopped():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = psutil.Process(child.pid)
    dog = watchdog.Watchdog(run=None, stall=Stall(stopped=0.2))
    try:
        assert dog._standing([process]) is None
        process.suspend()
        deadline = time.monotonic() + 10
        while not (told := dog._standing([process])):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert f"(pid {child.pid}) has been stopped" in told
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(("value", "seconds"), [(None, float("inf")), ("3600", 3600.0), ("inf", float("inf"))])
def test_without_a_limit_a_run_is_never_ended_for_taking_long(monkeypatch, value, seconds):
    monkeypatch.delenv(stall.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(stall.VARIABLE, value)
    assert stall.limit_seconds() == seconds


@pytest.mark.parametrize("value", ["0", "-3", "never", "nan"])
def test_a_limit_that_is_none_is_refused(monkeypatch, value):
    monkeypatch.setenv(stall.VARIABLE, value)
    with pytest.raises(ValueError, match="VERL_DUETS_STALL_SECONDS must be"):
        stall.limit_seconds()
