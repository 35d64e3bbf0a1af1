"""Weights over gloo between processes: bit for bit, and an error where a worker is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("gloo_workers.py")


def run(folder, *arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, str(SCRIPT), str(folder), *arguments], env=environment, timeout=240)


@pytest.fixture(scope="module")
def updates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    assert run(folder).returncode == 0
    return folder


@pytest.mark.parametrize("update", [0, 1])
@pytest.mark.parametrize("worker", ["rollout0", "rollout1"])
def test_every_rollout_worker_gets_every_weight_bit_for_bit(updates, worker, update):
    sent = torch.load(updates / f"actor0.{update}.pt")
    found = torch.load(updates / f"{worker}.{update}.pt")
    assert list(found) == list(sent) and len(sent) == 30
    for name, weight in sent.items():
        assert (found[name].dtype, found[name].shape) == (weight.dtype, weight.shape)
        assert found[name].flatten().view(torch.uint8).equal(weight.flatten().view(torch.uint8)), name


def test_an_update_brings_its_own_weights(updates):
    first, second = (torch.load(updates / f"rollout0.{update}.pt") for update in (0, 1))
    assert not first["large.torch.float32"].equal(second["large.torch.float32"])


def test_actor_ranks_outside_the_group_still_help_to_gather(updates):
    """Each weight is gathered from all actor ranks, so all of them have to walk through all weights."""
    assert list(torch.load(updates / "actor1.0.pt")) == list(torch.load(updates / "actor0.0.pt"))


@pytest.mark.long
@pytest.mark.parametrize("fault", ["die", "stall"])
def test_a_lost_rollout_worker_is_an_error_of_the_sender(tmp_path, fault):
    run(tmp_path, fault)
    assert "rank 0 of 3 lost the other workers of a weight update" in (tmp_path / "actor0.txt").read_text()
    assert not list(tmp_path.glob("actor0.*.pt"))


def test_only_the_first_actor_rank_and_the_rollout_workers_take_part():
    from recipes.core.gloo_checkpoint_engine import GlooCheckpointEngine

    actor, rollout = GlooCheckpointEngine.build_topology(3, 2, [("host", 5), None, None, None, None])
    assert (actor["rank"], rollout["rank"]) == ([0, -1, -1], [1, 2])
    assert set(actor["world_size"] + rollout["world_size"]) == {3}
    assert actor["meeting_point"] == [("host", 5)] * 3 and rollout["meeting_point"] == [("host", 5)] * 2
