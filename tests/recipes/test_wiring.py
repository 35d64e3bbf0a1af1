"""The guards of a run are at work while it trains: `main` as users call it, in place of Ray and training a look around.

Each guard has tests of its own; these hold the calls. They know verl's names, the commands and the environment of a
run, and of ours the class that all trainers share.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import psutil
import pytest

from recipes import plugin

MAIN = """
import json, os, signal, subprocess, sys, threading, time
from types import SimpleNamespace
import ray
import ray.experimental.internal_kv as kv
from verl.trainer import main_ppo

class Store(dict):
    "The key-value store of a Ray cluster that is not there."
    def internal_kv_get(self, key, namespace):
        return self.get(key)
    def internal_kv_put(self, key, value, overwrite, namespace):
        self[key] = value
        return 0
    def internal_kv_del(self, key, by_prefix, namespace):
        return 0

def bare(config):
    "The trainer of the config, with nothing behind it where verl's own part begins."
    from verl.trainer.ppo.v1 import PPOTrainerSync, get_trainer_cls
    def init(self, config):
        self.config, self.global_steps, self.total_training_steps = config, 1, 5
    PPOTrainerSync.__init__ = init
    PPOTrainerSync.step = lambda self, metrics, timing: metrics.update(reward=0.5)
    PPOTrainerSync._save_checkpoint = PPOTrainerSync.on_step_begin = PPOTrainerSync.on_step_end = lambda self: None
    return get_trainer_cls(config.trainer.v1.trainer_mode)(config)

def train(config):
    orphan = subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if os.environ.get("DIES"):
        print("ORPHAN", orphan.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    orphan.kill()
    trainer = bare(config)
    found = {"threads": [thread.name for thread in threading.enumerate()], "environment": dict(os.environ)}
    trainer.on_step_begin()
    trainer.step({}, {})
    os.kill(os.getpid(), signal.SIGTERM)
    deadline = time.monotonic() + 20
    while trainer.total_training_steps == 5 and time.monotonic() < deadline:
        time.sleep(0.1)
        trainer.on_step_end()
    found["last"] = trainer.total_training_steps
    print("FOUND" + json.dumps(found))

def options(actor, **options):
    runner = SimpleNamespace(run=SimpleNamespace(remote=train))
    return SimpleNamespace(remote=lambda: runner)

ray.init = lambda **settings: setattr(kv, "global_gcs_client", Store())
ray.get = lambda value: value
ray.actor.ActorClass.options = options
sys.argv = ["main", *sys.argv[1:]]
import runpy
runpy.run_module("recipes.sppo.main", run_name="__main__")
"""
INSTALLED = """
import json, os
os.environ |= {"VERL_DUETS_SYNC_TIMEOUT": "7", "VERL_PLATFORM": "cpu"}
import recipes.core.trainer
import ray
import verl
from ray import cloudpickle
from recipes.launch.doctor import lost_rows
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from verl.trainer.ppo.v1 import trainer_base
from verl.workers import engine_workers
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer, utils, vllm_rollout
import verl.utils.model as model
import verl.workers.engine.fsdp.transformer_impl
ours = {
    "actor": engine_workers.ActorRolloutRefWorker.update_weights,
    "sender": vllm_rollout.ServerAdapter.update_weights,
    "engine": utils.vLLMColocateWorkerExtension._update_weights,
    "engine's end": utils.vLLMColocateWorkerExtension.update_weights_from_ipc,
    "difference": trainer_base.PPOTrainer._compute_old_log_prob,
    "socket": transfer.BucketedWeightSender._init_socket,
    "acknowledgements": transfer.BucketedWeightSender.async_send_weights,
    "critic": model.load_valuehead_model,
    "attention of packed rows": ALL_ATTENTION_FUNCTIONS["sdpa"],
}
# Ray wraps every method of an actor's class, and pickles by value what the wrapper holds.
for worker in (engine_workers.ActorRolloutRefWorker, engine_workers.TrainingWorker):
    cloudpickle.dumps(ray.remote(worker).__ray_metadata__.modified_class)
files = {name: function.__code__.co_filename for name, function in ours.items()}
print("FOUND" + json.dumps({"lost": list(lost_rows().values()), "files": files}))
"""


def run(code, *arguments, cwd, **environment):
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_", "WANDB_"))}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=cleared | environment, capture_output=True, text=True, timeout=200, check=False
    )
    lines = [line.removeprefix("FOUND") for line in done.stdout.splitlines() if line.startswith("FOUND")]
    return done, json.loads(lines[0]) if lines else None


def lives(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wiring")
    model = folder / "model"
    model.mkdir()
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3"} | sizes | heads))
    (model / "tokenizer.json").write_text("{}")
    # 100 GB of weights in a sparse file, for which a sync may take longer.
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(100 * 10**9)
    row = {"data_source": "toy", "prompt": [{"role": "user", "content": "1 + 1?"}]}
    pd.DataFrame([row | {"reward_model": {"style": "rule", "ground_truth": "2"}}] * 256).to_parquet(
        folder / "a.parquet"
    )
    files = [f"data.{kind}_files={folder}/a.parquet" for kind in ("train", "val")]
    return ["scale=toy", f"actor_rollout_ref.model.path={model}", *files, "trainer.logger=[console,wandb]"]


@pytest.fixture(scope="module")
def two_attempts(overrides, tmp_path_factory):
    """A run that is killed as it trains, and the next one: the first's orphan, the second's outcome and look around."""
    folder = tmp_path_factory.mktemp("run")
    environment = {"XDG_STATE_HOME": str(folder / "state"), "WANDB_MODE": "offline"}
    killed, _ = run(MAIN, *overrides, cwd=folder, DIES="1", **environment)
    assert killed.returncode == -9, killed.stderr[-3000:]
    orphan = int(killed.stdout.partition("ORPHAN")[2].split()[0])
    assert lives(orphan)
    done, found = run(MAIN, *overrides, cwd=folder, **environment)
    assert found is not None, done.stderr[-3000:]
    return folder, orphan, done, found


def test_a_run_is_watched_recorded_and_limited_while_it_trains(two_attempts):
    folder, orphan, done, found = two_attempts
    assert any(name.startswith("verl-duets") and ("watch" in name or "monitor" in name) for name in found["threads"])
    environment = found["environment"]
    assert environment["VERL_DUETS_RUN"]
    assert float(environment["VERL_DUETS_SYNC_TIMEOUT"]) > 200, "the limit grows with the model"
    (kept,) = folder.rglob("wandb_run_id")
    assert environment["WANDB_RUN_ID"] == kept.read_text().strip()


def test_the_processes_of_a_killed_run_are_ended_before_the_next(two_attempts):
    folder, orphan, done, found = two_attempts
    assert not lives(orphan)
    assert not list((folder / "state").rglob("*.json")), "a run that has ended leaves no record"


def test_a_signal_reaches_the_trainer_which_saves_its_step_with_its_metrics(two_attempts):
    folder, orphan, done, found = two_attempts
    assert found["last"] == 1 and done.returncode == 75, done.stderr[-3000:]
    (metrics,) = folder.rglob("global_step_1/metrics.json")
    assert json.loads(metrics.read_text()) == {"training/global_step": 1.0, "reward": 0.5}


@pytest.mark.parametrize("row", [row for row in plugin.TABLE if row.kind == "trainer"], ids=lambda row: row.name)
def test_every_trainer_is_built_on_the_one_that_listens_and_drops_unscored(row):
    # First, as in a run: its registry takes ours while it is imported.
    importlib.import_module("verl.trainer.ppo.v1")
    assert issubclass(plugin.load(row.target), plugin.load("recipes.core.trainer:DuetTrainer"))


def test_the_processes_of_a_run_have_every_guard_in_force(tmp_path):
    """Ray can send verl's workers with them, and a trainer that is imported before verl is registered all the same."""
    done, found = run(INSTALLED, cwd=tmp_path)
    assert found is not None, done.stderr[-3000:]
    here = str(Path(__file__).parents[2] / "recipes")
    assert [name for name, file in found["files"].items() if not file.startswith(here)] == []
    assert found["lost"] == []
