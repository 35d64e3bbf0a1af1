"""A request travels from a signal to a trainer in another process of a real Ray, and the driver's exit code says it."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.timeout(280)
DRIVER = """
import sys, tempfile, time
import ray
from omegaconf import OmegaConf
from recipes.core.requests import RayRequests
from recipes.launch import cluster
from recipes.launch import signals as run_signals

log = sys.argv[2]  # written by the trainer itself: what it prints Ray may pass on too late
requests = RayRequests("run-of-the-test")
signals = run_signals.Signals("sppo", requests, 60.0)
signals.start()

@ray.remote(num_cpus=0)
class Runner:
    def run(self, seconds):
        from verl.trainer.ppo.v1 import PPOTrainerSync
        from recipes.core.trainer import DuetTrainer
        PPOTrainerSync._save_checkpoint = lambda self: open(log, "a").write(f"has saved step {self.global_steps}\\n")
        PPOTrainerSync.on_step_end = lambda self: None
        trainer = object.__new__(DuetTrainer)
        trainer.save_own_state, trainer._step_metrics = lambda folder: None, {}
        trainer.config = OmegaConf.create({"trainer": {"default_local_dir": tempfile.mkdtemp()}})
        trainer.requests, trainer.total_training_steps, trainer.global_steps = requests, 10_000, 1
        trainer._saves_done, trainer._saved_step = None, -1
        while trainer.global_steps <= trainer.total_training_steps:
            trainer.on_step_begin()
            time.sleep(float(seconds))
            trainer.on_step_end()
            trainer.global_steps += 1

ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80_000_000)
runner = cluster.PreparedRunner(Runner, {}, before=signals.listen).remote()
print("started", flush=True)
try:
    ray.get(runner.run.remote(sys.argv[1]))
    print("stopped at", signals.stopped_at(), flush=True)
    requests.clear()
    assert signals.stopped_at() is None
    sys.exit(run_signals.SAVED)
except KeyboardInterrupt:
    sys.exit(signals.exit_code)
finally:
    signals.stop()
    ray.shutdown()
"""


@pytest.fixture
def start(tmp_path):
    processes = []

    def start(step_seconds: float):
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, str(step_seconds), log.name],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.log = tmp_path / "log"
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(driver, text: str) -> None:
    deadline = time.monotonic() + 120
    while text not in driver.log.read_text():
        assert driver.poll() is None and time.monotonic() < deadline, driver.log.read_text()[-3000:]
        time.sleep(0.1)


def ask_until_told(driver, number: int, text: str) -> None:
    """Ask to save until a step has begun; before that there is nothing to save, and the driver says so."""
    deadline = time.monotonic() + 120
    while text not in driver.log.read_text():
        assert driver.poll() is None and time.monotonic() < deadline, driver.log.read_text()[-3000:]
        driver.send_signal(number)
        time.sleep(1)


def test_save_then_end_with_the_whole_process_group(start):
    driver = start(0.05)
    wait_for(driver, "started")
    ask_until_told(driver, signal.SIGUSR1, "has saved step")
    os.killpg(driver.pid, signal.SIGINT)
    assert driver.wait(60) == 75, driver.log.read_text()[-3000:]
    log = driver.log.read_text()
    assert re.findall(r"has saved step (\d+)", log)[-1:] == re.findall(r"stopped at (\d+)", log)


def test_a_second_signal_ends_the_wait_for_a_long_step(start):
    driver = start(60)
    wait_for(driver, "started")
    ask_until_told(driver, signal.SIGUSR1, "will be saved, and the run goes on")
    driver.send_signal(signal.SIGTERM)
    wait_for(driver, "exits with code 75")
    driver.send_signal(signal.SIGINT)
    assert driver.wait(50) == 143, driver.log.read_text()[-3000:]
    assert "asked again; the run is abandoned" in driver.log.read_text()
