"""Signals to a driver that waits, and what the trainer's side makes of the requests, in verl's own order of a step."""

import os
import signal
import subprocess
import sys
import time

import pytest
from omegaconf import OmegaConf

from recipes.errors import ConfigError
from recipes.launch import signals as run_signals

DRIVER = """
import sys, time
from recipes.launch.signals import Signals

class Memory(dict):
    def put(self, name, value):
        self[name] = value
        print(name, value, flush=True)

requests = Memory({"step": "1"} if sys.argv[1] == "training" else {})
signals = Signals("sppo", requests, float(sys.argv[2]))
signals.start()
print("ready", flush=True)
try:
    time.sleep(30)
except KeyboardInterrupt:
    sys.exit(signals.exit_code)
finally:
    signals.stop()
"""


class Driver:
    """A process that waits as a driver of a run does."""

    def __init__(self, phase: str, limit: float):
        command = [sys.executable, "-c", DRIVER, phase, str(limit)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def told(self) -> str:
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_before_the_first_step_the_run_ends_at_once(number, code):
    driver = Driver("loading", 60)
    driver.send(number)
    assert driver.end()[0] == code


def test_a_second_signal_abandons_the_step():
    driver = Driver("training", 60)
    driver.send(signal.SIGTERM)
    assert driver.told() == "stop yes"
    driver.send(signal.SIGINT)
    code, errors = driver.end()
    assert code == 143 and "exits with code 75" in errors and "last complete checkpoint is kept" in errors


def test_a_step_that_does_not_end_within_the_limit_is_abandoned():
    began = time.monotonic()
    driver = Driver("training", 0.5)
    driver.send(signal.SIGTERM)
    code, errors = driver.end()
    assert code == 143 and "did not end within 0.5 s (VERL_DUETS_STOP_SECONDS)" in errors
    assert time.monotonic() - began < 20


def test_every_request_to_save_is_passed_on_and_ends_nothing():
    driver = Driver("training", 60)
    for count in (1, 2):
        driver.send(signal.SIGUSR1)
        assert driver.told() == f"save {count}"
    driver.send(signal.SIGTERM)
    assert driver.told() == "stop yes"
    driver.send(signal.SIGTERM)
    assert driver.end()[0] == 143


def test_a_signal_that_is_ignored_stays_ignored():
    """As under nohup, or in the background of a script."""
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{DRIVER}"
    command = [sys.executable, "-c", code, "training", "60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGUSR1)
    assert process.stdout.readline() == "save 1\n"
    process.kill()
    process.communicate()


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf"])
def test_a_limit_that_is_no_time_is_refused(monkeypatch, value):
    monkeypatch.setenv(run_signals.VARIABLE, value)
    with pytest.raises(ConfigError) as refused:
        run_signals.limit_seconds()
    assert refused.value.key == run_signals.VARIABLE


class Memory(dict):
    def put(self, name, value):
        self[name] = value


@pytest.fixture
def train(monkeypatch, tmp_path):
    """verl's loop as it stands in `PPOTrainer.fit` (step, save, weights to the engines, log), and what it did."""
    from verl.trainer.ppo.v1 import PPOTrainerSync

    from recipes.core.trainer import DuetTrainer

    def train(steps: int, save_freq: int, at_step: dict[int, dict] | None = None):
        events, requests, trainer = [], Memory(), object.__new__(DuetTrainer)
        monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", lambda self: events.append(("save", self.global_steps)))
        monkeypatch.setattr(PPOTrainerSync, "on_step_end", lambda self: events.append(("weights", self.global_steps)))
        trainer.config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
        trainer.requests, trainer.global_steps, trainer.total_training_steps = requests, 1, steps
        trainer._saves_done, trainer._saved_step, trainer._step_metrics = None, -1, {}
        while trainer.global_steps <= trainer.total_training_steps:
            is_last_step = trainer.global_steps >= trainer.total_training_steps
            trainer.on_step_begin()
            requests.update((at_step or {}).get(trainer.global_steps, {}))
            if save_freq > 0 and (is_last_step or trainer.global_steps % save_freq == 0):
                trainer._save_checkpoint()
            trainer.on_step_end()
            events.append(("log", trainer.global_steps))
            trainer.global_steps += 1
        return events, requests

    return train


def test_without_requests_nothing_changes(train):
    events, requests = train(3, 2)
    steps = [[("weights", step), ("log", step)] for step in (1, 2, 3)]
    assert events == [*steps[0], ("save", 2), *steps[1], ("save", 3), *steps[2]]
    assert requests == {"step": "3"}


@pytest.mark.parametrize(
    ("steps", "save_freq", "requests", "saved", "stopped"),
    [
        (9, 5, {3: {"stop": "yes"}}, [3], "3"),
        # A step that verl saves itself is saved once.
        (9, 3, {3: {"stop": "yes", "save": "1"}}, [3], "3"),
        # A request in the last step is a whole run.
        (3, 2, {3: {"stop": "yes"}}, [2, 3], None),
        (3, -1, {3: {"stop": "yes"}}, [3], None),
        # Asked to save, it goes on.
        (4, -1, {1: {"save": "1"}, 3: {"save": "2"}}, [1, 3], None),
    ],
)
def test_a_request_is_heard_in_its_step(train, steps, save_freq, requests, saved, stopped):
    """Each step is saved before its engines wake, and logged."""
    events, told = train(steps, save_freq, requests)
    assert [step for what, step in events if what == "save"] == saved
    assert told.get("stopped") == stopped
    last = int(stopped or steps)
    assert [step for what, step in events if what == "log"] == list(range(1, last + 1))
    assert all(events.index(("save", step)) < events.index(("weights", step)) for step in saved)
