"""Which devices a run asks of the machine it starts on."""

import os
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from recipes.core import nvidia
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
    with pytest.raises(EnvironmentProblem, match=f"has {found} devices and the run wants {wanted} "):
        cluster.check_machine(asked, "cuda", more)


def test_a_cpu_run_starts_where_the_user_has_hidden_the_gpus(monkeypatch):
    """Ray refuses num_gpus=2 beside CUDA_VISIBLE_DEVICES="", although these devices are only counted."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    asked = OmegaConf.merge(
        config(), OmegaConf.create({"ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": {"SEED": 1}}}}})
    )
    cluster.prepare_ray(asked, "cpu", None)
    assert asked.ray_kwargs.ray_init.runtime_env.env_vars.SEED == "1"
    assert asked.ray_kwargs.ray_init.num_gpus == 2
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_gpu_that_torch_cannot_use_is_an_error_and_not_a_run_on_the_processor(tmp_path, monkeypatch):
    """A driver too old for torch, or a torch built for the processor, once ran a GPU's scale on the processor."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    monkeypatch.setattr(nvidia, "nvidia_driver", lambda: "driver 470.57.02")
    with pytest.raises(EnvironmentProblem, match="470.57.02"):
        cluster.choose_device([], None)
    assert cluster.choose_device(["trainer.device=cpu"], None) == "cpu"
    monkeypatch.setattr(nvidia, "nvidia_driver", lambda: None)
    assert cluster.choose_device([], None) == "cpu"


@pytest.mark.parametrize(
    ("hidden", "found"), [(None, "driver 470.57.02"), ("", None), ("-1", None), ("0", "driver 470")]
)
def test_devices_are_found_by_their_files_unless_they_are_hidden(tmp_path, monkeypatch, hidden, found):
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13\n")
    (tmp_path / "nvidiactl").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert nvidia.nvidia_driver(tmp_path / "version", tmp_path) is None
    (tmp_path / "nvidia0").touch()
    told = nvidia.nvidia_driver(tmp_path / "version", tmp_path)
    assert told == found or (found and told.startswith(found))
    if hidden is None:
        assert nvidia.nvidia_driver(tmp_path / "none", tmp_path) == "driver unknown"


def test_services_are_told_by_name():
    names = ("WANDB_API_KEY", "WANDB_RUN_ID", "HF_TOKEN", "JUDGE_API_KEY", "MLFLOW_TRACKING_URI")
    wanted = dict.fromkeys(names, "value")
    assert cluster.services(wanted | {"HOME": "/", "MY_WANDB_X": "", "HF_HOME": "/"}) == wanted


@pytest.mark.timeout(300)
def test_keys_reach_the_workers_of_a_joined_cluster_and_not_the_config(monkeypatch):
    """Workers get them from the task runner, through actors with an environment of their own, as verl starts them."""
    import ray

    for name in ("WANDB_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    ray.init(address="local", num_cpus=3, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)
    try:

        @ray.remote
        class Worker:
            def told(self):
                return {name: os.environ.get(name) for name in ("WANDB_API_KEY", "HF_TOKEN", "RANK")}

        @ray.remote
        class Runner:
            def run(self):
                worker = Worker.options(runtime_env={"env_vars": {"RANK": "0"}}).remote()
                return ray.get(worker.told.remote())

        # Set after the cluster was started, so that no worker of it inherits them.
        monkeypatch.setenv("WANDB_API_KEY", "secret-w")
        monkeypatch.setenv("HF_TOKEN", "secret-h")
        runner = cluster.PreparedRunner(Runner, cluster.services(os.environ)).remote()
        assert ray.get(runner.run.remote()) == {"WANDB_API_KEY": "secret-w", "HF_TOKEN": "secret-h", "RANK": "0"}
        plain = Runner.remote()
        assert ray.get(plain.run.remote())["WANDB_API_KEY"] is None
    finally:
        ray.shutdown()
    asked = OmegaConf.merge(config(), OmegaConf.create({"ray_kwargs": {"ray_init": {"num_cpus": None}}}))
    cluster.prepare_ray(asked, "accelerator", "10.0.0.1:6379")
    assert "secret" not in OmegaConf.to_yaml(asked)


def test_rays_head_is_told_to_keep_few_records_of_calls(monkeypatch):
    """Its default let it grow by 199 MB in 100 steps of a soak; the name must be one that the installed Ray knows."""
    import ray

    for name in tuple(os.environ):
        if name.startswith("RAY_task_events"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(cluster.os, "environ", dict(os.environ))
    cluster.set_environment("cuda")
    names = [name for name in cluster.os.environ if name.startswith("RAY_task_events")]
    (server,) = Path(ray.__file__).parent.rglob("gcs_server")
    known = server.read_bytes()
    assert len(names) == 2
    for name in names:
        assert int(cluster.os.environ[name]) <= 10_000 and name.encode() in known
    cluster.os.environ[names[0]] = "7"
    cluster.set_environment("cuda")
    assert cluster.os.environ[names[0]] == "7", "what the user set stands"
