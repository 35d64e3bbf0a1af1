"""Which processes the watchdog takes for vLLM's engines, and what it says when one is gone."""

import subprocess
import threading
import time

import psutil

from recipes.lifecycle import leftovers, watchdog

SPAWN = "/env/bin/python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=70, pipe_handle=29)"
TRACKER = "/env/bin/python -c from multiprocessing.resource_tracker import main;main(5)"


def seen(processes, age=300.0):
    return {pid: watchdog.Seen(parent, title, age) for pid, (parent, title) in processes.items()}


def test_titled_engines_are_found_wherever_they_stand_and_however_young():
    processes = {5: (1, "VLLM::EngineCore_DP0   "), 6: (5, "VLLM::Worker_TP1"), 7: (1, "python train.py")}
    assert watchdog.engines(seen(processes, age=0.1)) == {5: "VLLM::EngineCore_DP0", 6: "VLLM::Worker_TP1"}


def test_engines_without_a_title_are_known_by_their_parents():
    processes = {
        3: (1, "ray::TandemHttpServer.generate"),
        4: (3, TRACKER),
        5: (3, SPAWN),
        6: (5, SPAWN),
        7: (5, TRACKER),
        8: (6, SPAWN),
    }
    assert watchdog.engines(seen(processes)) == {5: "VLLM::EngineCore", 6: "VLLM::Worker"}
    processes[5] = (3, "VLLM::EngineCore")
    assert watchdog.engines(seen(processes)) == {5: "VLLM::EngineCore", 6: "VLLM::Worker"}


def test_helpers_that_an_engine_spawns_may_end():
    processes = seen({3: (1, "ray::vLLMHttpServer"), 5: (3, "VLLM::EngineCore")})
    helpers = seen({6: (3, SPAWN), 7: (5, SPAWN)}, age=20.0)
    assert watchdog.engines(processes | helpers) == {5: "VLLM::EngineCore"}


def test_processes_that_a_reward_worker_spawns_may_end():
    processes = {3: (1, "ray::RewardLoopWorker.compute_score"), 5: (3, SPAWN), 6: (5, SPAWN)}
    assert watchdog.engines(seen(processes)) == {}


def test_a_dead_engine_is_told_once_it_was_seen():
    child = subprocess.Popen(["bash", "-c", "echo; exec -a VLLM::Worker sleep 60"], stdout=subprocess.PIPE)
    process = psutil.Process(child.pid)
    try:
        child.stdout.readline()
        while not " ".join(process.cmdline()).startswith("VLLM"):
            time.sleep(0.01)
        dog = watchdog.Watchdog(run=None)
        assert dog._dead_engine([process]) is None
    finally:
        child.kill()
    child.wait()
    assert dog._dead_engine([process]) == f"the rollout engine process VLLM::Worker (pid {child.pid}) died"


def test_segments_are_noted_while_ray_does_not_answer_and_until_the_run_ends(monkeypatch):
    """Without its head Ray answers after a minute; an engine that is starting makes its segments meanwhile."""
    answers, ended, looks = threading.Event(), threading.Event(), []
    dog = watchdog.Watchdog(run=leftovers.RunRecord("run", 1, "", 0.0, 0.0), poll=0.01, grace=0.5)

    def dead_actor():
        answers.wait(60)
        return "a worker died"

    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(watchdog, "dead_actor", dead_actor)
    monkeypatch.setattr(dog._segments, "look", lambda: looks.append(dog.died))
    for name in ("remove_shared_memory", "end_run"):
        monkeypatch.setattr(watchdog.leftovers, name, lambda _: None)
    monkeypatch.setattr(watchdog.os, "_exit", lambda code: ended.set())
    dog.start()
    deadline = time.monotonic() + 30
    while looks.count(None) < 5:
        assert time.monotonic() < deadline, "nothing is noted while the watchdog asks Ray"
        time.sleep(0.01)
    answers.set()
    assert ended.wait(30) and looks.count("a worker died") > 3
    dog.stop()


def test_a_look_that_fails_does_not_end_the_watch(monkeypatch, capsys):
    ended, answers = threading.Event(), iter([ConnectionError("the head is busy"), None, "a worker died"])
    dog = watchdog.Watchdog(run=leftovers.RunRecord("run", 1, "", 0.0, 0.0), poll=0.01, grace=0.01)

    def dead_actor():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(watchdog, "dead_actor", dead_actor)
    monkeypatch.setattr(dog._segments, "look", lambda: None)
    for name in ("remove_shared_memory", "end_run"):
        monkeypatch.setattr(watchdog.leftovers, name, lambda _: None)
    monkeypatch.setattr(watchdog.os, "_exit", lambda code: ended.set())
    dog.start()
    assert ended.wait(30) and dog.died == "a worker died"
    assert "a look failed" in capsys.readouterr().err
    dog.stop()
