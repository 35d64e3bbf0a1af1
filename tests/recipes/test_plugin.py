"""The registration table against verl's live registries, in fresh processes as verl's workers are."""

import json
import logging
import os
import subprocess
import sys

import pytest

from recipes import plugin
from recipes.core import own_log
from recipes.launch.doctor import lost_rows


@pytest.fixture(autouse=True)
def no_errors_of_other_tests(monkeypatch):
    """What another test's environment made of the plug-in in this process is no matter here."""
    monkeypatch.setattr(own_log, "messages", [])


LOOK = """
import io, json, logging, sys, traceback
sys.stderr = heard = io.StringIO()
sys.excepthook = lambda *error: traceback.print_exception(*error, file=sys.__stderr__)
import verl
from recipes.launch.doctor import lost_rows
from recipes.core import own_log
lost = list(lost_rows().values())
from verl.plugin.platform import PlatformRegistry, get_platform
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import trainer_base
from verl.experimental.agent_loop import agent_loop
from verl.experimental.reward_loop.reward_manager import registry
from verl.workers.rollout.replica import RolloutReplicaRegistry
import importlib.metadata, verl.utils.distributed as distributed, verl.utils.model as model
import model_hosting_container_standards.logging_config
logging.getLogger("recipes.core.journal").warning("a line of a run")
logging.getLogger("another.package").warning("a line of another")
print("RESULT" + json.dumps({
    "lost": lost,
    "startup": own_log.messages,
    "names": {
        "platform": sorted(PlatformRegistry.registered_names()),
        "adv_estimator": sorted(core_algos.ADV_ESTIMATOR_REGISTRY),
        "policy_loss": sorted(core_algos.POLICY_LOSS_REGISTRY),
        "trainer": sorted(trainer_base.TRAINER_REGISTRY),
        "agent_loop": sorted(agent_loop._agent_loop_registry),
        "reward_manager": sorted(registry.REWARD_MANAGER),
        "rollout_replica": sorted(RolloutReplicaRegistry._registry),
    },
    "chosen": type(get_platform()).__name__,
    "behaviour": [
        importlib.metadata.version.__code__.co_filename,
        distributed.initialize_global_process_group_ray.__code__.co_filename,
        model.load_valuehead_model.__code__.co_filename,
    ],
    "root": logging.getLogger().level,
    "heard": heard.getvalue(),
}))
"""


def run_python(code: str, tmp_path, **environment) -> dict:
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_ADDRESS"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=cleared | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "RESULT" in done.stdout, done.stdout + done.stderr
    return json.loads(done.stdout.split("RESULT")[1].splitlines()[0])


@pytest.fixture(scope="module")
def with_us(tmp_path_factory):
    return run_python(LOOK, tmp_path_factory.mktemp("with"))


@pytest.fixture(scope="module")
def without_us(tmp_path_factory):
    return run_python(LOOK, tmp_path_factory.mktemp("without"), VERL_USE_EXTERNAL_PLUGINS="none")


def test_importing_verl_registers_every_row(with_us):
    assert with_us["lost"] == with_us["startup"] == []
    for row in plugin.TABLE:
        assert row.kind == "rollout_adapter" or row.name in with_us["names"][row.kind]


def test_a_disabled_plugin_is_told(without_us):
    assert len(without_us["lost"]) == len(plugin.TABLE)
    assert all("VERL_USE_EXTERNAL_PLUGINS=none" in problem for problem in without_us["lost"])


def test_other_verl_jobs_stay_as_they_were(with_us, without_us):
    """Registries differ by our names only; platform and patched functions are upstream's."""
    ours = {kind: {row.name for row in plugin.TABLE if row.kind == kind} for kind in without_us["names"]}
    for kind, names in without_us["names"].items():
        assert set(with_us["names"][kind]) - set(names) <= ours[kind]
        assert set(names) <= set(with_us["names"][kind])
    assert with_us["chosen"] == without_us["chosen"] == "PlatformCUDA"
    assert with_us["behaviour"] == without_us["behaviour"]


def test_the_warnings_of_a_run_outlast_what_vllm_imports(with_us):
    """A dependency of vLLM's server raises the root logger to ERROR, and with it every logger without a level."""
    assert with_us["root"] == logging.ERROR, "the dependency has changed: own_log.py may not be needed"
    assert with_us["heard"].count("a line of a run") == 1 and "a line of another" not in with_us["heard"]


def test_activating_twice_is_harmless():
    plugin.start()
    before = dict(plugin.errors)
    plugin.start()
    assert plugin.errors == before


def test_a_foreign_object_under_our_name_is_told(monkeypatch):
    import verl.trainer.ppo.core_algos as core_algos

    row = plugin.Row("policy_loss", "sppo", "recipes.sppo.verl_plugin:compute_sppo_policy_loss")
    monkeypatch.setitem(core_algos.POLICY_LOSS_REGISTRY, "sppo", lambda: None)
    assert "not recipes.sppo.verl_plugin" in lost_rows([row])[row]


def test_a_row_that_cannot_be_imported_is_recorded():
    row = plugin.Row("policy_loss", "no_such_loss", "recipes.no_such_module:loss")
    plugin.activate([row])
    import verl.trainer.ppo.core_algos  # noqa: F401

    assert "no_such_module" in lost_rows([row])[row]
    plugin.errors.pop(row, None)


@pytest.mark.parametrize("row", plugin.TABLE, ids=lambda row: f"{row.kind}-{row.name}")
def test_kinds_are_known(row):
    assert row.kind in plugin.KINDS
    assert row.target.count(":") == 1
