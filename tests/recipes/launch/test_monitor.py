"""When the monitor ends a run, what it says of one that stands still, and what it tells of a start-up."""

import os
import re
import subprocess
import threading
import time

import psutil
import pytest
from ray.exceptions import ActorUnavailableError

from recipes.errors import ConfigError
from recipes.launch import leftovers, monitor
from recipes.launch.monitor import STAGES, Monitor, Process, Stall, StartUp

SPAWN = "/env/bin/python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=70, pipe_handle=29)"
TRACKER = "/env/bin/python -c from multiprocessing.resource_tracker import main;main(5)"
RUNNER = Process(0, "ray::TaskRunnerV1.run")
SERVER = "ray::vLLMHttpServer"


def seen(processes, age=300.0):
    return {pid: Process(parent, title, age) for pid, (parent, title) in processes.items()}


def run(*titles: str, cpu: float = 0.0, stopped: str = "") -> dict[int, Process]:
    return {1: RUNNER} | {n: Process(1, title, 0.0, title == stopped, cpu) for n, title in enumerate(titles, 2)}


def test_titled_engines_are_found_wherever_they_stand_and_however_young():
    processes = {5: (1, "VLLM::EngineCore_DP0   "), 6: (5, "VLLM::Worker_TP1"), 7: (1, "python train.py")}
    forked = {8: (5, "VLLM::EngineCore_DP0   ")}
    assert monitor.engines(seen(processes | forked, age=0.1)) == {5: "VLLM::EngineCore_DP0", 6: "VLLM::Worker_TP1"}


@pytest.mark.parametrize("core", [SPAWN, "VLLM::EngineCore"])
def test_engines_without_a_title_are_known_by_their_parents(core):
    processes = {
        3: (1, "ray::TandemHttpServer.generate"),
        4: (3, TRACKER),
        5: (3, core),
        6: (5, SPAWN),
        7: (5, TRACKER),
        8: (6, SPAWN),
    }
    assert monitor.engines(seen(processes)) == {5: "VLLM::EngineCore", 6: "VLLM::Worker"}


@pytest.mark.parametrize(
    ("parent", "age", "found"),
    [(SERVER, 20.0, {5: "VLLM::EngineCore"}), ("ray::RewardLoopWorker.compute_score", 300.0, {5: "VLLM::EngineCore"})],
)
def test_helpers_that_an_engine_or_a_reward_worker_spawns_may_end(parent, age, found):
    processes = seen({3: (1, parent), 5: (1, "VLLM::EngineCore")}) | seen({6: (3, SPAWN), 7: (6, SPAWN)}, age)
    assert monitor.engines(processes) == found


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(leftovers.VARIABLE, "")
    return leftovers.begin_run()


@pytest.fixture
def titled():
    """Starts a process of the run under a title."""
    started = []

    def start(title: str) -> subprocess.Popen:
        code = "echo; exec -a " + title + " sleep 60"
        child = subprocess.Popen(["bash", "-c", code], stdout=subprocess.PIPE, env=os.environ.copy())
        started.append(child)
        child.stdout.readline()
        while psutil.Process(child.pid).cmdline()[:1] != [title]:
            time.sleep(0.01)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


@pytest.fixture
def ended(monkeypatch):
    """Set when the monitor ends this process, which stays."""
    event = threading.Event()
    monkeypatch.setattr(monitor.os, "_exit", lambda code: event.set())
    return event


@pytest.mark.parametrize("fault", ["dies", "is stopped"])
def test_a_real_engine_that_dies_or_is_stopped_ends_the_run_and_all_its_processes(record, titled, ended, fault):
    engine, other = titled("VLLM::Worker"), titled("ray::WorkerDict.init_model")
    dog = Monitor("sppo", record, Stall(stopped=0.3), poll=0.05, grace=0.1)
    dog.start()
    while not dog._engines:
        time.sleep(0.01)
    assert not ended.wait(0.5)
    if fault == "dies":
        engine.kill()
        engine.wait()
    else:
        psutil.Process(engine.pid).suspend()
    assert ended.wait(30)
    assert f"(pid {engine.pid}) {'died' if fault == 'dies' else 'has been stopped for'}" in dog.problem
    other.wait(10)
    assert leftovers.processes_of({record.name}) == [] and not list(leftovers.records_folder().iterdir())


@pytest.mark.parametrize("verl", ["ends by itself", "hangs"])
def test_verl_may_end_by_itself_after_a_death(record, ended, monkeypatch, verl):
    monkeypatch.setattr(monitor, "dead_actor", lambda: "a worker died")
    dog = Monitor("sppo", record, poll=0.01, grace=0.5)
    dog.start()
    while not dog.problem:
        time.sleep(0.01)
    if verl == "ends by itself":
        dog.stop()
    assert ended.wait(2) is (verl == "hangs")


def test_a_run_that_ray_ends_for_memory_says_who_held_how_much(record, titled, ended, monkeypatch):
    titled("VLLM::EngineCore")
    said = iter([None] * 20)
    killed = "actor WorkerDict died: 3 worker(s) were killed due to the node running low on memory"
    monkeypatch.setattr(monitor, "dead_actor", lambda: next(said, killed))
    dog = Monitor("sppo", record, poll=0.05, grace=0.1)
    dog.start()
    assert ended.wait(30) and dog.problem.startswith(f"out of memory: {killed}. Most that its processes here held: ")
    assert re.search(r"VLLM::EngineCore 0\.\d GiB", dog.problem) and "ppo_max_token_len_per_gpu" in dog.problem


def test_the_reason_of_a_lost_actor_is_why_it_died_which_ray_may_know_later(record, monkeypatch):
    said = iter([None, None, "actor WorkerDict died: killed"])
    monkeypatch.setattr(monitor, "dead_actor", lambda: next(said))
    dog = Monitor("sppo", record)
    assert dog.cause(ValueError("a bad key")) is None
    assert dog.cause(ActorUnavailableError("Socket closed", b"0" * 16)) == "actor WorkerDict died: killed"
    assert dog.cause(ValueError("Ray is gone, so that no look succeeds")) is None


def test_a_look_that_fails_does_not_end_the_watch(record, ended, monkeypatch, capsys):
    answers = iter([ConnectionError("the head is busy"), None, "a worker died"])

    def dead_actor():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(monitor, "dead_actor", dead_actor)
    dog = Monitor("sppo", record, poll=0.01, grace=0.01)
    dog.start()
    assert ended.wait(30) and dog.problem == "a worker died"
    assert "the head is busy" in capsys.readouterr().err


def test_a_change_of_calls_is_no_stall():
    stall, update = Stall(limit=100, report=50), "ray::WorkerDict.actor_rollout_update_actor"
    for title, now in ((update, 0), (update, 49), ("ray::WorkerDict.save_checkpoint", 51), (update, 100)):
        assert stall.poll(run(title), now) == ("", False)


@pytest.mark.parametrize(
    ("title", "doing"),
    [
        ("ray::AgentLoopWorkerTQ.generate_sequences", " while rollouts are written"),
        ("ray::RewardLoopWorker.compute_score", " while responses are scored"),
        ("ray::WorkerDict.actor_rollout_update_weights", " while the rollout engines take the model's weights"),
        ("ray::WorkerDict.actor_rollout_save_checkpoint", " while the checkpoint is saved"),
        ("ray::Somebody.does_something", ""),
    ],
)
def test_the_stage_the_actor_and_its_processor_time_are_named(title, doing):
    stall = Stall(limit=1000, report=50)
    stall.poll(run(title, "VLLM::EngineCore", cpu=3.0), 0)
    told, end = stall.poll(run(title, "VLLM::EngineCore", cpu=45.0), 60)
    assert not end and f"for 60 s{doing}: {title} (pid 2, 42 s of CPU), VLLM::EngineCore (pid 3, 42 s of CPU)" in told
    assert stall.poll(run(title, "VLLM::EngineCore", cpu=45.0), 70) == ("", False), "not again at once"
    told, end = stall.poll(run(title, "VLLM::EngineCore", cpu=45.0), 1000)
    assert end and "VERL_DUETS_STALL_SECONDS=1000" in told


def test_a_run_between_calls_or_before_them_is_not_judged():
    stall = Stall(limit=10, report=5)
    stall.poll(run(), 0)
    assert stall.poll(run("ray::WorkerDict", "python -m recipes.sppo.main"), 100) == ("", False)


def test_a_stopped_process_is_named_after_its_time_and_forgiven_when_it_goes_on():
    stall, title = Stall(stopped=60), "VLLM::EngineCore"
    for stopped, now in ((title, 0), ("", 30), (title, 59), (title, 100)):
        assert stall.poll(run(title, stopped=stopped), now) == ("", False)
    assert stall.poll(run(title, stopped=title), 119) == ("VLLM::EngineCore (pid 2) has been stopped for 60 s", True)


@pytest.mark.parametrize(("value", "seconds"), [(None, float("inf")), ("3600", 3600.0), ("inf", float("inf"))])
def test_without_a_limit_a_run_is_never_ended_for_taking_long(monkeypatch, value, seconds):
    monkeypatch.delenv(monitor.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(monitor.VARIABLE, value)
    assert monitor.limit_seconds() == seconds


@pytest.mark.parametrize("value", ["0", "-3", "never", "nan"])
def test_a_limit_that_is_none_is_refused(monkeypatch, value):
    monkeypatch.setenv(monitor.VARIABLE, value)
    with pytest.raises(ConfigError) as refused:
        monitor.limit_seconds()
    assert refused.value.key == monitor.VARIABLE


START = ["python -m recipes.sppo.main log_prob", "/x/raylet --a", "ray::TaskRunnerV1.run", "ray::WorkerDict.init_model"]
ENGINE = [*START[:3], "ray::WorkerDict", "VLLM::EngineCore"]


def test_each_stage_of_a_start_up_is_told_once_until_something_of_a_step_shows():
    """Actors are idle between two stages, and an engine stands as long as the run: neither is a stage again."""
    start_up, told = StartUp(), []
    for titles in (
        *(START[:count] for count in (1, 2, 3, 4)),
        [*ENGINE, f"{SERVER}.launch_server"],
        [*ENGINE, SERVER],
        [*ENGINE, f"{SERVER}.generate"],
        [*ENGINE, SERVER],
        [*ENGINE, "ray::WorkerDict.update_weights"],
        START,
    ):
        told += [line] if (line := start_up.poll(titles, 1000.0 * len(told))) else []
    marks = ("raylet", "TaskRunner", "init_model", "launch_server", "HttpServer.generate")
    assert told == [dict(STAGES)[mark] for mark in marks]


def test_a_stage_that_lasts_is_told_again():
    start_up = StartUp(repeat=60)
    assert [bool(start_up.poll(START, now)) for now in (0, 59, 60, 61, 120)] == [True, False, True, False, True]


def test_the_start_up_of_a_real_run_is_told(record, titled, capfd):
    titled("ray::WorkerDict.init_model")
    dog = Monitor("sppo", record, poll=0.05)
    dog.start()
    deadline, said = time.monotonic() + 20, ""
    while "\n" not in said and time.monotonic() < deadline:
        time.sleep(0.05)
        said += capfd.readouterr().err
    dog.stop()
    assert said.startswith("sppo: the training workers load the model (0 s)")
