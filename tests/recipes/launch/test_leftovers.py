"""Orphans of a killed run, with real processes and real shared memory."""

import json
import os
import subprocess
import sys
import time
import uuid
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import psutil
import pytest

from recipes.launch import leftovers
from recipes.launch.leftovers import RunRecord

DRIVER = """
import subprocess, sys, time
from multiprocessing import resource_tracker, shared_memory
from recipes.launch import leftovers
leftovers.begin_run()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
kept = [shared_memory.SharedMemory(name=name, create=True, size=1024) for name in sys.argv[1:]]
for segment in kept:
    resource_tracker.unregister(segment._name, "shared_memory")
print(child.pid, flush=True)
time.sleep(120)
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv(leftovers.VARIABLE, raising=False)


@pytest.fixture
def driver(state):
    """A run with a child, a weight segment and one of Python's default name."""
    names = [f"verl_weights_{uuid.uuid4().hex}", f"psm_{uuid.uuid4().hex[:8]}"]
    process = subprocess.Popen([sys.executable, "-c", DRIVER, *names], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(process.stdout.readline()))
    segments = [leftovers.SHARED_MEMORY / name for name in names]
    yield process, child, segments
    process.kill()
    if child.is_running():
        child.kill()
    for segment in segments:
        segment.unlink(missing_ok=True)


def kill(process) -> None:
    process.kill()
    process.wait()


def test_a_living_run_is_left_alone(driver):
    _, child, (weights, other) = driver
    assert leftovers.remove_leftovers() == []
    assert str(other) not in (leftovers.unowned_line() or "")
    assert child.is_running() and weights.exists()


def test_a_killed_run_leaves_nothing_of_its_own_and_names_what_may_be_anothers(driver):
    process, child, (weights, other) = driver
    older = leftovers.SHARED_MEMORY / f"verl_weights_{uuid.uuid4().hex}"
    older.write_bytes(b"older than the run")
    os.utime(older, (1, 1))
    kill(process)
    try:
        # Python's tracker of shared memory is the second, unless it has gone by itself.
        ended, *removed = leftovers.remove_leftovers()
        assert ended in [f"{n} processes of a run that was killed" for n in (1, 2)]
        assert removed == [f"shared memory {weights.name}"]
        assert older.exists() and other.exists() and not weights.exists()
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        _, command, files = leftovers.unowned_line().partition(": rm ")
        assert command and str(other) in files.split() and other.exists()
        assert leftovers.remove_leftovers() == [] and not list(leftovers.records_folder().iterdir())
    finally:
        older.unlink(missing_ok=True)


def test_a_segment_made_in_the_tick_in_which_the_run_began_is_taken(driver):
    process, _, (weights, _) = driver
    [record] = leftovers.records_folder().glob("*.json")
    stamp = json.loads(record.read_text())["began"] - 0.004
    os.utime(weights, (stamp, stamp))
    kill(process)
    assert f"shared memory {weights.name}" in leftovers.remove_leftovers()


def test_a_mapped_segment_is_neither_taken_nor_named(driver):
    process, _, segments = driver
    attached = [shared_memory.SharedMemory(name=segment.name) for segment in segments]
    for segment in attached:
        resource_tracker.unregister(segment._name, "shared_memory")
    kill(process)
    leftovers.remove_leftovers()
    assert segments[0].exists() and str(segments[1]) not in (leftovers.unowned_line() or "")
    for segment in attached:
        segment.close()


def test_what_a_process_of_a_run_started_is_the_runs_without_the_environment(state):
    """Ray's agents have none that can be read."""
    record = leftovers.begin_run()
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], env={}).pid, flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pids = {child.pid, int(child.stdout.readline())}
    processes = leftovers.processes_of({record.name})
    leftovers.stop_processes(processes)
    assert {process.pid for process in processes} == pids


def test_a_recycled_pid_is_not_the_driver(state):
    record = leftovers.begin_run()
    os.environ.pop(leftovers.VARIABLE)
    assert record.alive()
    assert not RunRecord("host-1-ab", os.getpid(), record.driver_started - 100, time.time()).alive()


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_step_of_the_clock_leaves_a_living_run_alone(driver, monkeypatch, step):
    """The kernel's boot time moves with the clock; psutil's time of creation with it."""
    process, child, (weights, _) = driver
    honest = psutil._pslinux.boot_time()
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: honest + step)
    monkeypatch.setattr(time, "time", lambda before=time.time: before() + step)
    assert psutil.boot_time() == honest + step
    assert leftovers.remove_leftovers() == []
    assert child.is_running() and weights.exists()
    kill(process)
    assert leftovers.remove_leftovers()


def test_an_unreadable_record_is_dropped(state):
    folder = leftovers.records_folder()
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text("{")
    (folder / "other.json").write_text(json.dumps({"name": 1}))
    assert leftovers.dead_runs() == []
    assert list(folder.iterdir()) == []


def test_the_sockets_of_a_killed_sync_go_by_their_run(driver, tmp_path, monkeypatch):
    from recipes.core.weight_sync import socket_of_this_run

    monkeypatch.setattr(leftovers, "SOCKETS", tmp_path)
    process, _, _ = driver
    [path] = leftovers.records_folder().glob("*.json")
    plain = str(tmp_path / "rl-colocate-zmq-01000000-replica-0-rank-0.sock")
    sockets = []
    for run in (path.stem, "another run"):
        monkeypatch.setenv(leftovers.VARIABLE, run)
        sockets.append(Path(socket_of_this_run(plain)))
        sockets[-1].touch()
    monkeypatch.delenv(leftovers.VARIABLE)
    kill(process)
    assert f"socket {sockets[0].name}" in leftovers.remove_leftovers()
    assert not sockets[0].exists() and sockets[1].exists()
