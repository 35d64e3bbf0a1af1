"""Bad input on the command line: one clear sentence, exit code 2, and no Ray."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest

# The module's cases run in one process, slowly where the machine does other work as well.
pytestmark = pytest.mark.timeout(600)
ROW = {
    "data_source": "toy",
    "prompt": [{"role": "user", "content": "1 + 1?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
}
RUN_CASES = """
import contextlib, importlib, io, json, sys
from recipes.launch import start
RECIPE = importlib.import_module(f"recipes.{sys.argv[2]}.main").RECIPE
told = {}
for name, argv in json.load(open(sys.argv[1])).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = start.main(RECIPE, argv)
    told[name] = [code, err.getvalue(), out.getvalue()]
import ray
print("RESULT" + json.dumps({"told": told, "ray": ray.is_initialized()}))
"""
SENTENCES = {
    "missing model": "/no/such/model does not exist",
    "memory of the machine": "a CPU the weights stand twice while a model is built, which needs about 7162.2 GiB",
    "unknown key": "did you mean trainer.total_training_steps?",
    "unknown addition": "unknown key 'trainer.total_step'",
    "empty parquet": "has no rows",
    "malformed parquet": "is not a readable parquet file",
    "no data": "does not exist",
    "wrong column": "no column 'prompt'",
    "bypass mode": "bypass_mode",
    "estimator without its loss": "go together",
    "loss without its estimator": "go together",
    "unknown option of the block": "unknown key algorithm.sppo.etas",
    "retired trainer": "trainer.use_v1=false",
    "another training engine": "model_engine=megatron: these recipes train with verl's FSDP engines only",
    "another training engine, with keys of FSDP": "model_engine=veomni: these recipes train with verl's FSDP engines",
    "another training engine by its strategy": "actor_rollout_ref.actor.strategy must be 'fsdp' or 'fsdp2', found 'meg",
    "fsdp1 on a CPU": "actor_rollout_ref.actor.strategy=fsdp does not run on a CPU",
    "sglang on a CPU": "actor_rollout_ref.rollout.name=sglang does not run on a CPU",
    "no devices": "trainer.n_gpus_per_node must be greater than or equal to 1, found 0",
    "a number for a name": "trainer.project_name must be a valid string, found 2025",
    "micro-batch": "does not divide a mini-batch of 256",
    "reward function": "cannot be loaded from pkg://reward_fns.math",
    "reward file": "reward.custom_reward_function.path=/no/such/file.py does not exist",
    "dataset class": "data.custom_cls: 'Nosuch' cannot be loaded from pkg://recipes.sppo.main",
    "replay buffer": "trainer.v1.sampler.custom_sampler.path=/no/such/file.py does not exist",
    "reward limits": "algorithm.reward_faults.skip_share must be less than or equal to 1",
    "group hook": "algorithm.group_hook",
    "unknown scale": "enormous",
    "a path that Hydra cannot read": "stands in quotes: actor_rollout_ref.model.path=\"'/models/step=3'\"",
    "unknown tracker": "trainer.logger names 'consle', which verl does not have; did you mean console?",
    "tracker without its package": "trainer.logger names 'vemlp_wandb', but the package volcengine_ml_platform is not",
    "size of the GPU": "one_gpu.gb (or GPU_GB) must be one of 24, 48, 80, found 40",
    "a word for a number": "critic.ulysses_sequence_parallel_size must be a valid number, found 'two'",
    "text for a block": "critic.model.override_config must be a valid dictionary, found 'sdpa'",
    "a key taken out": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu was taken out, and verl reads it",
    "a value to be filled in": "Missing mandatory value: actor_rollout_ref.actor.rollout_n",
    "a path that no file system takes": "File name too long",
    "a switch for a function's name": "reward.custom_reward_function.name must be a valid string",
    "an assertion of verl's without words": "verl refuses the config: assert ",
    "flag": "unknown option --verbose",
    "verl's own refusal": "verl refuses the config",
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launch")
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"0")
    pd.DataFrame([ROW] * 4).to_parquet(folder / "good.parquet")
    pd.DataFrame([ROW]).iloc[:0].to_parquet(folder / "empty.parquet")
    pd.DataFrame([ROW]).rename(columns={"prompt": "question"}).to_parquet(folder / "columns.parquet")
    (folder / "broken.parquet").write_bytes(b"no parquet")
    large = {"vocab_size": 151936, "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 300}
    large |= {"num_attention_heads": 128, "num_key_value_heads": 8, "model_type": "llama"}
    (folder / "large").mkdir()
    (folder / "large" / "config.json").write_text(json.dumps(large))
    good = [
        "scale=toy",
        f"actor_rollout_ref.model.path={model}",
        f"data.train_files={folder}/good.parquet",
        f"data.val_files={folder}/good.parquet",
        f"trainer.default_local_dir={folder}/checkpoints",
    ]
    return {
        "missing model": [*good, "actor_rollout_ref.model.path=/no/such/model"],
        "memory of the machine": [*good, f"actor_rollout_ref.model.path={folder}/large"],
        "unknown key": [*good, "trainer.total_trainig_steps=3"],
        "unknown addition": [*good, "+trainer.total_step=3"],
        "empty parquet": [*good, f"data.train_files={folder}/empty.parquet"],
        "malformed parquet": [*good, f"data.val_files={folder}/broken.parquet"],
        "no data": [*good, f"data.train_files={folder}/none.parquet"],
        "wrong column": [*good, f"data.train_files={folder}/columns.parquet"],
        "bypass mode": [*good, "algorithm.rollout_correction.bypass_mode=true"],
        "estimator without its loss": [*good, "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"],
        "loss without its estimator": [*good, "algorithm.adv_estimator=grpo"],
        "unknown option of the block": [*good, "+algorithm.sppo.etas=1"],
        "retired trainer": [*good, "trainer.use_v1=false"],
        "another training engine": [*good, "model_engine=megatron"],
        "another training engine, with keys of FSDP": [
            *good,
            "model_engine=veomni",
            "actor_rollout_ref.actor.fsdp_config.param_offload=true",
        ],
        "another training engine by its strategy": [*good, "actor_rollout_ref.actor.strategy=megatron"],
        "fsdp1 on a CPU": [*good, "actor_rollout_ref.actor.strategy=fsdp"],
        "sglang on a CPU": [*good, "actor_rollout_ref.rollout.name=sglang"],
        "micro-batch": [*good, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=100"],
        "no devices": [*good, "trainer.n_gpus_per_node=0"],
        "a number for a name": [*good, "trainer.project_name=2025"],
        "reward function": [*good, "reward.custom_reward_function.name=no_such_function"],
        "dataset class": [*good, "data.custom_cls.path=pkg://recipes.sppo.main", "data.custom_cls.name=Nosuch"],
        "replay buffer": [
            *good,
            "trainer.v1.sampler.custom_sampler.path=/no/such/file.py",
            "trainer.v1.sampler.custom_sampler.name=Buffer",
        ],
        "reward file": [*good, "reward.custom_reward_function.path=/no/such/file.py"],
        "reward limits": [*good, "algorithm.reward_faults.skip_share=2"],
        "group hook": [*good, "algorithm.group_hook.path=pkg://no.such.module", "algorithm.group_hook.name=hook"],
        "unknown scale": [*good[1:], "scale=enormous"],
        "a path that Hydra cannot read": [*good, "actor_rollout_ref.model.path=/models/step=3"],
        "unknown tracker": [*good, "trainer.logger=[file,consle]"],
        "tracker without its package": [*good, "trainer.logger=vemlp_wandb"],
        "size of the GPU": [*good[1:], "scale=qwen3_4b_lora_1gpu", "one_gpu.gb=40"],
        "a word for a number": [*good, "critic.ulysses_sequence_parallel_size=two"],
        "text for a block": [*good, "critic.model.override_config=sdpa"],
        "a key taken out": [*good, "~actor_rollout_ref.actor.ppo_max_token_len_per_gpu"],
        "a value to be filled in": [*good, "actor_rollout_ref.actor.rollout_n=???"],
        "a path that no file system takes": [*good, f"data.train_files={folder}/{'a' * 300}.parquet"],
        "a switch for a function's name": [*good, "reward.custom_reward_function.name=true"],
        "an assertion of verl's without words": [*good, "actor_rollout_ref.actor.optim.warmup_style=1"],
        "flag": [*good, "--verbose"],
        "verl's own refusal": [*good, "actor_rollout_ref.actor.ppo_mini_batch_size=2048"],
        "good": [*good, "--dry-run"],
        "larger than this machine": [*good, f"actor_rollout_ref.model.path={folder}/large", "--dry-run"],
        "help": ["--help"],
    }


def launch_all(cases, folder, recipe="sppo", **environment):
    (folder / "cases.json").write_text(json.dumps(cases))
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
    done = subprocess.run(
        [sys.executable, "-c", RUN_CASES, str(folder / "cases.json"), recipe],
        env=cleared | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert "RESULT" in done.stdout, done.stdout + done.stderr
    return json.loads(done.stdout.split("RESULT")[1].splitlines()[0])


@pytest.fixture(scope="module")
def launched(cases, tmp_path_factory):
    return launch_all(cases, tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("case", SENTENCES)
def test_bad_input_is_one_sentence(launched, case):
    code, error, _ = launched["told"][case]
    last = error.strip().splitlines()[-1]
    assert code == 2
    assert SENTENCES[case] in last
    assert last.startswith("sppo: ")
    assert "Traceback" not in error


def test_nothing_started_ray(launched):
    assert launched["ray"] is False


def test_a_dry_run_shows_the_config_the_difference_and_the_arithmetic(launched):
    code, error, out = launched["told"]["good"]
    assert code == 0, error
    assert "algorithm.sppo.eta" in out and "What differs from verl's ppo_trainer" in out
    assert "512 prompts x 1 = 512 responses, 2 optimiser updates" in out


def test_a_dry_run_is_only_told_of_the_memory_of_this_machine(launched):
    """It may be meant for others."""
    _, error, out = launched["told"]["larger than this machine"]
    assert "this machine would refuse the run" in out and "stand twice" not in error


def test_help(launched):
    code, _, out = launched["told"]["help"]
    assert code == 0 and "--dry-run" in out


def test_a_lost_plugin_is_refused(cases, tmp_path):
    told = launch_all({"good": cases["good"]}, tmp_path, VERL_USE_EXTERNAL_PLUGINS="none")["told"]["good"]
    assert told[0] == 2 and "VERL_USE_EXTERNAL_PLUGINS=none" in told[1]


def test_a_missing_critic_is_one_sentence(cases, tmp_path):
    """verl builds its critic's config of the model's files, and once ended in a traceback without them."""
    missing = {
        "critic.model.path=/no/such/critic": "critic.model.path=/no/such/critic does not exist",
        "critic.model.path=null": "critic.model.path is not set",
    }
    launched = launch_all({key: [*cases["good"], key] for key in missing}, tmp_path, recipe="step_ppo")
    assert launched["ray"] is False
    for key, sentence in missing.items():
        code, error, _ = launched["told"][key]
        assert code == 2 and error.strip().splitlines()[-1].startswith(f"step_ppo: {sentence}")
        assert "Traceback" not in error


def test_an_unknown_verl_is_refused(cases, tmp_path):
    metadata = tmp_path / "site" / "verl-0.12.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.12.0\n")
    told = launch_all({"good": cases["good"]}, tmp_path, PYTHONPATH=str(metadata.parent))["told"]["good"]
    assert told[0] == 2 and "verl 0.12.0 is installed, but only >=0.9.1,<0.10 is known" in told[1]
