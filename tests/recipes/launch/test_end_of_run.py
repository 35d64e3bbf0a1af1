"""What the launcher does when verl has ended: the processes that are left, and the sentence of a failure."""

import inspect
import os
import shutil
import subprocess
import time

import psutil
import pytest

from recipes.launch import leftovers, start

# A worker of the run in whose exit wandb sends what is left; wandb's service ends with the process that started it.
WORKER = '"$0" "$1" & wait $!'


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(leftovers.VARIABLE, "")
    return leftovers.begin_run()


@pytest.fixture
def processes(run, tmp_path):
    """Starts a worker with a service that sends for so many seconds; the two, and a helper beside them."""
    service = shutil.copy("/bin/sleep", tmp_path / "wandb-core")
    started = []

    def begin(seconds: float) -> tuple[psutil.Popen, psutil.Process, psutil.Popen]:
        helper, worker = psutil.Popen(["sleep", "100"]), psutil.Popen(["bash", "-c", WORKER, service, str(seconds)])
        started.extend([helper, worker])
        while not (below := worker.children()) or below[0].name() != "wandb-core":
            time.sleep(0.01)
        started.extend(below)
        return worker, below[0], helper

    yield begin
    for process in started:
        if process.is_running():
            process.kill()


@pytest.fixture
def asked_to_end(monkeypatch):
    """The processes of each request to end, as they are made."""
    stop, asked = leftovers.stop_processes, []

    def note(processes, *arguments):
        asked.append([process.pid for process in processes])
        stop(processes, *arguments)

    monkeypatch.setattr(leftovers, "stop_processes", note)
    return asked


def test_wandb_may_send_the_rest_while_other_processes_are_ended(run, processes, asked_to_end, capsys):
    worker, service, helper = processes(4)
    began = time.monotonic()
    start._end_processes("sppo", run, seconds=0.5, wandb_seconds=60)
    assert asked_to_end == [[helper.pid], []], "the worker and the service end by themselves"
    assert 3 < time.monotonic() - began < 50
    assert leftovers.processes_of({run.name}) == []
    said = f"sppo: waiting up to 60 s for wandb to send the rest of the run (process {service.pid})\n"
    assert capsys.readouterr().out == said


def test_wandb_does_not_hold_the_end_without_a_limit(run, processes, asked_to_end):
    worker, service, helper = processes(100)
    start._end_processes("sppo", run, seconds=0.2, wandb_seconds=1)
    assert list(map(sorted, asked_to_end)) == [[helper.pid], sorted([worker.pid, service.pid])]
    assert leftovers.processes_of({run.name}) == []


def test_without_wandb_nothing_is_waited_for_longer(run, asked_to_end, capsys):
    helper = subprocess.Popen(["sleep", "100"])
    start._end_processes("sppo", run, seconds=0.2, wandb_seconds=100)
    assert asked_to_end == [[helper.pid]] and capsys.readouterr().out == ""


def test_the_installed_wandb_calls_its_service_so():
    from wandb.util import get_core_path

    from recipes.launch.wandb_run import SERVICE

    assert os.path.basename(get_core_path()) == SERVICE


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            Exception("The current node timed out during startup. This could happen because some of the raylet failed"),
            "Ray did not start within its own 30 s, as happens on a busy machine; nothing was trained, and the same "
            "command starts again",
        ),
        (RuntimeError("a line\nthe last line\n"), "the last line"),
        (KeyError(), "KeyError"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(error, reason):
    assert start.reason_of(error) == reason


def test_ray_still_says_so():
    """The words by which it is known, and the limit that the sentence names."""
    from ray._private import node

    source = inspect.getsource(node)
    assert start.RAY_DID_NOT_START in source and "raylet_start_wait_time_s = 30" in source
