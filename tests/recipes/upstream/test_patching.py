"""A patch is applied to a module that looks as the ledger says, and to no other."""

import functools
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from recipes.upstream import compat, startup_errors
from recipes.upstream.patching import patch_when_imported
from vllm_patches.upstream import Signature, Symbol, is_replaced, replaces


def double(module):
    upstream = module.step

    @replaces(upstream)
    def step(batch):
        return 2 * upstream(batch)

    module.step = step


@pytest.fixture
def messages(monkeypatch):
    rows = {
        "a.py": (Symbol("upstream_module:step", "doubled", Signature("batch")), Symbol("other_module:gone", "read"))
    }
    monkeypatch.setattr(compat, "LEDGER", rows)
    monkeypatch.setattr(startup_errors, "messages", [])
    return startup_errors.messages


def imported(monkeypatch, step):
    module = types.ModuleType("upstream_module")
    module.step = step
    monkeypatch.setitem(sys.modules, "upstream_module", module)
    patch_when_imported("upstream_module", "a.py", double)
    return module


def test_a_module_as_expected_is_patched_and_still_shows_what_it_was(monkeypatch, messages):
    module = imported(monkeypatch, lambda batch: batch + 1)
    assert module.step(3) == 8 and is_replaced(module.step) and messages == []
    compat.require("a.py", module="upstream_module")


def test_a_changed_module_is_left_alone_with_a_message(monkeypatch, messages):
    module = imported(monkeypatch, lambda batch, metrics: batch)
    assert not is_replaced(module.step)
    assert len(messages) == 1 and "expected (batch), found (batch, metrics)" in messages[0]


def test_what_wraps_a_replacement_does_not_carry_the_replaced_callable_along():
    """Ray wraps every method of an actor's class, and pickles by value what the wrapper holds."""
    upstream = lambda batch: batch  # noqa: E731
    replacement = replaces(upstream)(lambda batch: 2 * upstream(batch))
    wrapper = functools.wraps(replacement)(lambda batch: replacement(batch))
    assert is_replaced(wrapper)
    assert not any(callable(value) for name, value in vars(wrapper).items() if name != "__wrapped__")


RAY_CLASSES = """
import recipes.upstream.sync_guard, recipes.upstream.critic_adapter
recipes.upstream.sync_guard.install()
recipes.upstream.critic_adapter.install()
import ray
import verl.workers.engine_workers as workers
from ray import cloudpickle
from recipes.upstream import startup_errors
from vllm_patches.upstream import is_replaced
assert is_replaced(workers.ActorRolloutRefWorker.update_weights), startup_errors.messages
for worker in (workers.ActorRolloutRefWorker, workers.TrainingWorker):
    cloudpickle.dumps(ray.remote(worker).__ray_metadata__.modified_class)
print("both are sent")
"""


def test_ray_can_send_verls_workers_with_every_patch_in_place():
    root = Path(__file__).resolve().parents[3]
    environment = os.environ | {"VERL_PLATFORM": "cpu", "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", RAY_CLASSES]
    run = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0 and "both are sent" in run.stdout, run.stderr[-3000:]
