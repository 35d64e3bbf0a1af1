"""Orphans of a killed run, with real processes and real shared memory."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from recipes.lifecycle import leftovers, process_start

DRIVER = """
import os, subprocess, sys, time
from multiprocessing import resource_tracker, shared_memory
from recipes.lifecycle import leftovers
record = leftovers.begin_run()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
segment = shared_memory.SharedMemory(name=sys.argv[1], create=True, size=1024)
resource_tracker.unregister(segment._name, "shared_memory")
print(child.pid, flush=True)
time.sleep(120)
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv(leftovers.VARIABLE, raising=False)
    return tmp_path


@pytest.fixture
def driver(state):
    name = f"verl_weights_{uuid.uuid4().hex}"
    process = subprocess.Popen([sys.executable, "-c", DRIVER, name], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process, child, leftovers.SHARED_MEMORY / name
    process.kill()
    if psutil.pid_exists(child):
        os.kill(child, signal.SIGKILL)
    (leftovers.SHARED_MEMORY / name).unlink(missing_ok=True)


def test_a_living_run_is_left_alone(driver):
    process, child, segment = driver
    assert leftovers.remove_leftovers() == []
    assert psutil.pid_exists(child) and segment.exists()


def test_a_killed_run_leaves_nothing(driver):
    process, child, segment = driver
    foreign = leftovers.SHARED_MEMORY / f"verl_weights_{uuid.uuid4().hex}"
    foreign.write_bytes(b"older than the run")
    os.utime(foreign, (1, 1))
    process.kill()
    process.wait()
    removed = leftovers.remove_leftovers()
    try:
        assert foreign.exists()
        assert not segment.exists()
        deadline = time.monotonic() + 5
        while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(removed) == 2
        assert leftovers.remove_leftovers() == []
    finally:
        foreign.unlink(missing_ok=True)


def test_a_segment_made_in_the_tick_in_which_the_run_began_is_taken(driver):
    process, _, segment = driver
    [record] = leftovers.records_folder().glob("*.json")
    stamp = json.loads(record.read_text())["began"] - 0.004
    os.utime(segment, (stamp, stamp))
    process.kill()
    process.wait()
    assert f"shared memory {segment.name}" in leftovers.remove_leftovers()


def test_a_mapped_segment_is_not_taken(driver):
    from multiprocessing import resource_tracker, shared_memory

    process, _, segment = driver
    attached = shared_memory.SharedMemory(name=segment.name)
    resource_tracker.unregister(attached._name, "shared_memory")
    process.kill()
    process.wait()
    leftovers.remove_leftovers()
    assert segment.exists()
    attached.close()


def test_noted_segments_of_a_killed_run_go_whatever_their_name(driver):
    from multiprocessing import resource_tracker, shared_memory

    process, _, _ = driver
    [record] = [
        leftovers.RunRecord(**json.loads(path.read_text())) for path in leftovers.records_folder().glob("*.json")
    ]
    ours, foreign, renewed = (shared_memory.SharedMemory(create=True, size=64) for _ in range(3))
    try:
        leftovers.note_segments(record, [psutil.Process()])
        foreign_only = {ours._name.lstrip("/"), renewed._name.lstrip("/")}
        notes = leftovers.records_folder() / f"{record.name}.segments"
        noted = {inode: name for inode, name in json.loads(notes.read_text()).items() if name in foreign_only}
        assert set(noted.values()) == foreign_only
        notes.write_text(json.dumps(noted))
        # Another program's new segment under a noted name is not ours.
        (leftovers.SHARED_MEMORY / renewed.name).unlink()
        (leftovers.SHARED_MEMORY / renewed.name).write_bytes(b"somebody else's")

        process.kill()
        process.wait()
        # Still mapped by this process: left alone, as any living owner's.
        assert ours.name not in " ".join(leftovers.remove_leftovers())
        assert (leftovers.SHARED_MEMORY / ours.name).exists()

        ours.close()
        notes.write_text(json.dumps(noted))
        assert leftovers.remove_shared_memory(record) == [f"shared memory {ours.name}"]
        assert (leftovers.SHARED_MEMORY / foreign.name).exists() and (leftovers.SHARED_MEMORY / renewed.name).exists()
        leftovers.end_run(record)
        assert not notes.exists()
    finally:
        for segment in (ours, foreign, renewed):
            segment.close()
            resource_tracker.unregister(segment._name, "shared_memory")
            (leftovers.SHARED_MEMORY / segment.name).unlink(missing_ok=True)


def test_a_broken_note_is_no_note(driver):
    process, _, segment = driver
    [path] = leftovers.records_folder().glob("*.json")
    path.with_suffix(".segments").write_text("[")
    process.kill()
    process.wait()
    assert f"shared memory {segment.name}" in leftovers.remove_leftovers()
    assert list(leftovers.records_folder().iterdir()) == []


def test_a_recycled_pid_is_not_the_driver(state):
    boot, started = process_start.boot(), process_start.seconds_after_boot(os.getpid())
    assert leftovers.RunRecord("host-1-2-ab", os.getpid(), boot, started, time.time()).alive()
    assert not leftovers.RunRecord("host-1-2-ab", os.getpid(), boot, started - 100, time.time()).alive()
    assert not leftovers.RunRecord("host-1-2-ab", os.getpid(), "another", started, time.time()).alive()


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_step_of_the_clock_leaves_a_living_run_alone(driver, monkeypatch, step):
    """The kernel's boot time moves with the clock; psutil's time of creation with it."""
    process, child, segment = driver
    honest = psutil._pslinux.boot_time()
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: honest + step)
    monkeypatch.setattr(time, "time", lambda before=time.time: before() + step)
    assert leftovers.remove_leftovers() == []
    assert psutil.pid_exists(child) and segment.exists()
    assert process_start.age(process.pid) < 120
    process.kill()
    process.wait()
    assert leftovers.remove_leftovers()


def test_an_unreadable_record_is_dropped(state):
    folder = leftovers.records_folder()
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text("{")
    (folder / "other.json").write_text(json.dumps({"name": 1}))
    assert leftovers.dead_runs() == []
    assert list(folder.iterdir()) == []


MAKER = """
import sys, time
from multiprocessing import resource_tracker, shared_memory
sys.stdin.readline()
segment = shared_memory.SharedMemory(create=True, size=64)
resource_tracker.unregister(segment._name, "shared_memory")
print(segment.name, flush=True)
time.sleep(120)
"""


@pytest.fixture
def maker():
    """A process of a run that makes a segment once `make` is called; gives the segment's path."""
    started = []

    def make(run: str, meanwhile=lambda: None):
        process = subprocess.Popen(
            [sys.executable, "-c", MAKER], env=os.environ | {leftovers.VARIABLE: run},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        meanwhile()
        process.stdin.write("now\n")
        process.stdin.flush()
        started.append((process, leftovers.SHARED_MEMORY / process.stdout.readline().strip()))
        return started[-1]

    yield make
    for process, path in started:
        process.kill()
        process.wait()
        path.unlink(missing_ok=True)


@pytest.fixture
def record(state):
    yield leftovers.begin_run()
    os.environ.pop(leftovers.VARIABLE, None)


def test_a_segment_is_noted_soon_after_it_is_made_and_nobody_elses_is(record, maker):
    watch = leftovers.SegmentWatch(record)
    process, segment = maker(record.name, meanwhile=watch.look)
    _, foreign = maker("somebody-else")
    watch.look()
    process.kill()
    process.wait()
    assert f"shared memory {segment.name}" in leftovers.remove_shared_memory(record)
    assert not segment.exists() and foreign.exists()


def test_who_maps_what_is_read_only_while_a_file_is_new(record, monkeypatch):
    read = []
    monkeypatch.setattr(leftovers, "note_segments", lambda *_: read.append(1))
    listed = {}
    monkeypatch.setattr(leftovers, "_shared_memory", lambda: list(listed.items()))
    watch = leftovers.SegmentWatch(record, looks=2)
    listed["a"] = os.stat("/")
    for _ in range(10):
        watch.look()
    assert len(read) == 2
    listed["b"] = os.stat("/proc")
    watch.look()
    assert len(read) == 3


def test_what_the_orphans_of_a_killed_driver_map_goes_with_them(driver, maker):
    """The engine outlives its driver: what it maps is read before it is ended, noted or not."""
    process, _, _ = driver
    [path] = leftovers.records_folder().glob("*.json")
    orphan, segment = maker(path.stem)
    process.kill()
    process.wait()
    assert f"shared memory {segment.name}" in leftovers.remove_leftovers()
    orphan.wait(10)
    assert not segment.exists()


def test_the_sockets_of_a_killed_sync_go_by_their_run(driver, tmp_path, monkeypatch):
    from recipes.upstream.weight_sync import socket_of_this_run

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
    process.kill()
    process.wait()
    assert f"socket {sockets[0].name}" in leftovers.remove_leftovers()
    assert not sockets[0].exists() and sockets[1].exists()
