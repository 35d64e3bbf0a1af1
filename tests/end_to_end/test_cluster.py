"""Two data-parallel ranks with two rollout replicas, and a cluster that was running before."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]
RAY = str(Path(sys.executable).with_name("ray"))


def test_two_ranks_two_replicas(start, small):
    run = start(
        "recipes.sppo.main",
        *small,
        "preset=grpo",
        "trainer.n_gpus_per_node=2",
        "trainer.total_training_steps=2",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64",
    )
    run.wait_for_step(1, 900)
    engines = [process for process in run.descendants() if "VLLM::EngineCore" in " ".join(process.cmdline())]
    assert len(engines) == 2
    assert run.wait(300) == 0, run.log[-6000:]
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2]
    assert all(step["training/rollout_probs_diff_mean"] < 1e-5 for step in metrics.values())


@pytest.fixture
def cluster(tmp_path):
    """A cluster of one node with one logical device, as ``ray start`` makes it; it ends with its foreground process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
    port = free_port()
    command = [RAY, "start", "--head", "--block", f"--port={port}", "--num-cpus=8", "--num-gpus=1"]
    command += ["--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=300000000"]
    log = tmp_path / "ray.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, f"--temp-dir={tempfile.mkdtemp(prefix='ray', dir='/tmp')}"],
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + 120
    while "Ray runtime started" not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.5)
    yield f"127.0.0.1:{port}"
    members = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    process.terminate()
    for member in psutil.wait_procs(members, timeout=20)[1]:
        member.kill()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_joining_a_cluster(start, small, cluster):
    arguments = [*small, "preset=grpo", "trainer.device=cpu", "trainer.total_training_steps=1"]
    # Where an earlier Ray has made a token for this user, `ray start` protects its cluster with it.
    secured = (Path.home() / ".ray" / "auth_token").exists()
    joining = {"RAY_ADDRESS": cluster} | ({"RAY_AUTH_MODE": "token"} if secured else {})
    run = start("recipes.sppo.main", *arguments, environment=joining)
    assert run.wait() == 0, run.log[-6000:]
    assert sorted(run.metrics()) == [1]
    two = ["trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64"]
    asked = start("recipes.sppo.main", *arguments, *two, environment=joining)
    assert asked.wait(300) == 2
    assert "offers 1 devices and the run wants 2" in asked.log
    if secured:
        refused = start("recipes.sppo.main", *arguments, environment={"RAY_ADDRESS": cluster})
        assert refused.wait(300) == 2
        assert "needs RAY_AUTH_MODE=token" in refused.log


def test_an_address_nobody_answers_is_refused(start, small):
    with socket.socket() as silent:
        # Taken, and nobody listens.
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        run = start("recipes.sppo.main", *small, environment={"RAY_ADDRESS": address})
        assert run.wait(300) == 2
        assert f"no Ray cluster answers at {address}" in run.log
