"""Two data-parallel ranks with two rollout replicas, and clusters that were running before, of one node and of two."""

import os
import signal
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
def cluster(tmp_path, request):
    """A cluster of nodes with one logical device each, as ``ray start`` makes it; a node ends with its process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
    environment |= secured()
    port = free_port()
    common = ["--block", "--num-cpus=8", "--num-gpus=1", "--disable-usage-stats", "--object-store-memory=300000000"]
    head = ["--head", f"--port={port}", "--include-dashboard=false"]
    head.append(f"--temp-dir={tempfile.mkdtemp(prefix='ray', dir='/tmp')}")
    processes = []
    for number in range(getattr(request, "param", 1)):
        log = tmp_path / f"ray{number}.log"
        with log.open("w") as output:
            processes.append(
                subprocess.Popen(
                    [RAY, "start", *(head if number == 0 else [f"--address=127.0.0.1:{port}"]), *common],
                    env=environment,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert processes[-1].poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
    yield f"127.0.0.1:{port}"
    for process in reversed(processes):
        members = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        process.terminate()
        for member in psutil.wait_procs(members, timeout=20)[1]:
            member.kill()


def secured() -> dict[str, str]:
    """Where an earlier Ray has made a token for this user, `ray start` protects its cluster with it."""
    return {"RAY_AUTH_MODE": "token"} if (Path.home() / ".ray" / "auth_token").exists() else {}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_joining_a_cluster(start, small, cluster):
    arguments = [*small, "preset=grpo", "trainer.device=cpu", "trainer.total_training_steps=1"]
    joining = {"RAY_ADDRESS": cluster} | secured()
    run = start("recipes.sppo.main", *arguments, environment=joining)
    assert run.wait() == 0, run.log[-6000:]
    assert sorted(run.metrics()) == [1]
    two = ["trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64"]
    asked = start("recipes.sppo.main", *arguments, *two, environment=joining)
    assert asked.wait(300) == 2
    assert "offers 1 devices and the run wants 2" in asked.log
    if secured():
        refused = start("recipes.sppo.main", *arguments, environment={"RAY_ADDRESS": cluster})
        assert refused.wait(300) == 2
        assert "needs RAY_AUTH_MODE=token" in refused.log


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_two_nodes_train_are_asked_to_end_and_go_on(start, small, cluster):
    """A rank and an engine on each of two nodes; SIGTERM saves the step on both, the same command goes on from it."""
    arguments = [*small, "preset=grpo", "trainer.device=cpu", "trainer.nnodes=2", "trainer.total_training_steps=9"]
    arguments += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64"]
    joining = {"RAY_ADDRESS": cluster} | secured()
    first = start("recipes.sppo.main", *arguments, environment=joining)
    first.wait_for_step(1, 900)
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 75, first.log[-6000:]
    saved = max(first.metrics())
    second = start("recipes.sppo.main", *arguments, environment=joining)
    second.wait_for_step(saved + 1, 900)
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == 75, second.log[-6000:]
    assert f"setting global step to {saved}" in second.log
    assert all(step["training/rollout_probs_diff_mean"] < 1e-5 for step in second.metrics().values())
    shards = second.folder.rglob(f"global_step_{max(second.metrics())}/actor/model_world_size_2_rank_*.pt")
    assert len(list(shards)) == 2


def test_an_address_nobody_answers_is_refused(start, small):
    with socket.socket() as silent:
        # Taken, and nobody listens.
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        run = start("recipes.sppo.main", *small, environment={"RAY_ADDRESS": address})
        assert run.wait(300) == 2
        assert f"no Ray cluster answers at {address}" in run.log
