"""Which devices a run asks of the machine it starts on."""

import os

import pytest
import torch
from omegaconf import OmegaConf

from recipes.errors import EnvironmentProblem
from recipes.launch import cluster


def config(nodes: int = 1, devices: int = 2, pool: int = 0):
    reward_model = {"enable": pool > 0, "enable_resource_pool": True, "nnodes": 1, "n_gpus_per_node": pool}
    return OmegaConf.create(
        {"trainer": {"nnodes": nodes, "n_gpus_per_node": devices}, "reward": {"reward_model": reward_model}}
    )


def test_a_cpu_offers_as_many_devices_as_are_asked_for():
    cluster.check_machine(config(nodes=4, devices=8), "cpu", more_devices=8)


@pytest.mark.parametrize(
    ("asked", "more", "wanted"), [(config(), 0, 2), (config(nodes=2), 0, 4), (config(pool=3), 0, 5), (config(), 4, 6)]
)
def test_missing_accelerators_are_counted_with_every_pool_before_ray_starts(asked, more, wanted):
    found = torch.accelerator.device_count()
    if found >= wanted:
        cluster.check_machine(asked, "cuda", more)
        return
    with pytest.raises(
        EnvironmentProblem, match=f"this machine has {found} devices and the run wants {wanted} .*RAY_ADDRESS"
    ):
        cluster.check_machine(asked, "cuda", more)


def test_a_cpu_run_starts_where_the_user_has_hidden_the_gpus(monkeypatch):
    """Ray refuses num_gpus=2 beside CUDA_VISIBLE_DEVICES="", although these devices are only counted."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    asked = OmegaConf.merge(config(), OmegaConf.create({"ray_kwargs": {"ray_init": {}}}))
    cluster.prepare_ray(asked, "cpu", None)
    assert asked.ray_kwargs.ray_init.num_gpus == 2
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
