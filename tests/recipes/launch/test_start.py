"""Bad input on the command line: exit code 2, one sentence, and no Ray."""

import json
import os
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

# The module's cases run in one process, slowly where the machine does other work as well.
pytestmark = pytest.mark.timeout(600)
ROW = {
    "data_source": "toy",
    "prompt": [{"role": "user", "content": "1 + 1?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
}
RUN_CASES = """
import contextlib, importlib, io, json, os, sys
from unittest import mock
import yaml
yaml.SafeLoader = yaml.CSafeLoader
from recipes.launch import start
checked, told = start._checked, {}
def noted(*arguments):
    try:
        return checked(*arguments)
    except Exception as error:
        why[:] = [type(error).__name__, getattr(error, "key", "")]
        raise
start._checked = noted
for name, (recipe, argv, environment, path) in json.load(open(sys.argv[1])).items():
    out, err, why = io.StringIO(), io.StringIO(), ["", ""]
    chosen = importlib.import_module(f"recipes.{recipe}.main").RECIPE
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.dict(os.environ, environment):
        with mock.patch.object(sys, "path", [*path, *sys.path]):
            code = start.main(chosen, argv)
    told[name] = [code, *why, err.getvalue(), out.getvalue()]
import ray
print("RESULT" + json.dumps({"told": told, "ray": ray.is_initialized()}))
"""
REWARD, MODEL = "reward.custom_reward_function", "actor_rollout_ref.model.path"
TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
HOOK, SAMPLER = "algorithm.group_hook", "trainer.v1.sampler.custom_sampler"
SHOWN = "algorithm.show_responses_every"
# What is typed beside a good command, the type of the refusal, and its key: one for each check that the launcher calls.
REFUSED = {
    ("--verbose",): ("ConfigError", ""),
    ("--sppo_eta=1",): ("ConfigError", "--sppo_eta=1"),
    ("actor_rollout_ref.actor.sppo_eta=1",): ("ConfigError", "actor_rollout_ref.actor.sppo_eta"),
    ("+algorithm.sppo_eta=1",): ("ConfigError", "algorithm.sppo_eta"),
    ("actor_rollout_ref.rollout.multi_turn.enable=true",): (
        "ConfigError",
        "actor_rollout_ref.rollout.multi_turn.enable",
    ),
    ("trainer.logger=[console,wandb]", "trainer.project_name=a/b"): ("ConfigError", "trainer.project_name"),
    ("actor_rollout_ref.model.path={folder}/words", "trainer.n_gpus_per_node=1"): ("DataError", ""),
    ("model_engine=megatron",): ("ConfigError", "model_engine"),
    ("model_engine=veomni", "actor_rollout_ref.actor.fsdp_config.param_offload=true"): ("ConfigError", "model_engine"),
    ("trainer.total_trainig_steps=3",): ("ConfigError", "trainer.total_trainig_steps"),
    ("+trainer.total_step=3",): ("ConfigError", "trainer.total_step"),
    ("scale=qwen3_4b_lora_1gpu", "one_gpu.gb=40"): (
        "InterpolationKeyError",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    ),
    ("actor_rollout_ref.actor.rollout_n=???",): ("MissingMandatoryValue", "rollout_n"),
    ("trainer.n_gpus_per_node=0",): ("ConfigError", "trainer.n_gpus_per_node"),
    (f"{REWARD}.name=true",): ("ConfigError", f"{REWARD}.name"),
    ("trainer.use_v1=false",): ("ConfigError", "trainer.use_v1"),
    ("algorithm.rollout_correction.bypass_mode=true",): ("ConfigError", "algorithm.rollout_correction.bypass_mode"),
    ("+algorithm.sppo.etas=1",): ("ConfigError", "algorithm.sppo.etas"),
    ("actor_rollout_ref.actor.strategy=fsdp",): ("ConfigError", "actor_rollout_ref.actor.strategy"),
    ("actor_rollout_ref.rollout.name=sglang",): ("ConfigError", "actor_rollout_ref.rollout.name"),
    ("actor_rollout_ref.model.lora.rank=8",): ("ConfigError", "actor_rollout_ref.model.lora.rank"),
    ("trainer.logger=[file,consle]",): ("ConfigError", "trainer.logger"),
    ("trainer.logger=trackio",): ("EnvironmentProblem", ""),
    (f"{MODEL}=/no/such/model",): ("MissingFileError", ""),
    (f"{MODEL}={{folder}}/large",): ("ConfigError", ""),
    (f"data.train_files={'a' * 300}.parquet",): ("OSError", ""),
    ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=100",): (
        "ConfigError",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    ),
    (f"{REWARD}.name=no_such_function",): ("ConfigError", f"{REWARD}.name"),
    (f"{REWARD}.path=/no/such/file.py",): ("MissingFileError", ""),
    ("data.custom_cls.path=pkg://recipes.sppo.main", "data.custom_cls.name=No"): (
        "ConfigError",
        "data.custom_cls.name",
    ),
    (f"{SAMPLER}.path=/no/such/file.py", f"{SAMPLER}.name=Buffer"): ("MissingFileError", ""),
    ("actor_rollout_ref.actor.ppo_mini_batch_size=2048",): ("ConfigError", ""),
    ("actor_rollout_ref.actor.optim.warmup_style=1",): ("ConfigError", ""),
    ("algorithm.reward_faults.skip_share=2",): ("ConfigError", "algorithm.reward_faults.skip_share"),
    (f"{SHOWN}=often",): ("ConfigError", SHOWN),
    (f"{HOOK}.path=pkg://no.such.module", f"{HOOK}.name=hook"): ("ConfigError", HOOK),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and data that the checks take, and a model larger than any machine."""
    folder = tmp_path_factory.mktemp("launch")
    large = {"vocab_size": 151936, "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 300}
    large |= {"num_attention_heads": 128, "num_key_value_heads": 8, "model_type": "llama"}
    for name, config in (("model", {"model_type": "qwen3"}), ("large", large)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "model" / "tokenizer.json").write_text("{}")
    (folder / "model" / "model.safetensors").write_bytes(b"0")
    shutil.copytree(folder / "model", folder / "words")
    backend = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", chat_template="{{ messages[0]['content'] }}"
    ).save_pretrained(folder / "words")
    pd.DataFrame([ROW] * 4).to_parquet(folder / "good.parquet")
    return folder


GOOD, LARGE = ("--dry-run",), (f"{MODEL}={{folder}}/large", "--dry-run")
FEW = ("variant=majority", f"{MODEL}={{folder}}/words", "--dry-run")
AWAKE = ("preset=prm", "trainer.device=cuda", "--dry-run")
# No or a missing critic of step_ppo is refused before verl reads its files.
NO_CRITIC = {("critic.model.path=/no/such/critic",): "MissingFileError", ("critic.model.path=null",): "ConfigError"}
UNMADE = "critic.model.path=outputs/quickstart/step_ppo/round0/prm/backbone"
# An environment in which the good command is refused, the type, and what the sentence names.
WORLDS = {
    "no plug-in": ({"VERL_USE_EXTERNAL_PLUGINS": "none"}, "EnvironmentProblem", "VERL_USE_EXTERNAL_PLUGINS=none"),
    "another verl": ({}, "UnknownUpstreamError", "0.12.0"),
}


@pytest.fixture(scope="module")
def launched(folder):
    """Of each case beside a good command: exit code, type and key of the refusal, stderr, stdout."""
    metadata = folder / "another" / "verl-0.12.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.12.0\n")
    good = ["scale=toy", f"{MODEL}={folder}/model", f"trainer.default_local_dir={folder}/checkpoints"]
    good += [f"data.{part}_files={folder}/good.parquet" for part in ("train", "val")]
    cases = [("sppo", case) for case in (*REFUSED, GOOD, LARGE, ("--help",))]
    cases += [("serl", FEW), *(("step_ppo", case) for case in (*NO_CRITIC, (UNMADE,), AWAKE))]
    typed = {
        " ".join(case): [recipe, [*good, *(item.format(folder=folder) for item in case)], {}, []]
        for recipe, case in cases
    }
    for world, (environment, *_) in WORLDS.items():
        path = [str(metadata.parent)] if world == "another verl" else []
        typed[world] = ["sppo", [*good, *GOOD], environment, path]
    (folder / "cases.json").write_text(json.dumps(typed))
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
    done = subprocess.run(
        [sys.executable, "-c", RUN_CASES, str(folder / "cases.json")],
        env=cleared | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert "RESULT" in done.stdout, done.stdout + done.stderr
    found = json.loads(done.stdout.split("RESULT")[1].splitlines()[0])
    assert found["ray"] is False
    return found["told"]


@pytest.mark.parametrize("case", REFUSED, ids=" ".join)
def test_bad_input_is_one_sentence(launched, case):
    code, kind, key, error, _ = launched[" ".join(case)]
    assert (code, kind, key) == (2, *REFUSED[case])
    last = error.strip().splitlines()[-1]
    assert last.startswith("sppo: ") and len(last) > 30 and "Traceback" not in error


@pytest.mark.parametrize("case", [case for case in REFUSED if "sppo_eta" in case[0]], ids=" ".join)
def test_a_published_name_is_answered_with_ours(launched, case):
    assert "here it is algorithm.sppo.eta" in launched[" ".join(case)][3]


def test_a_dry_run_shows_the_config_the_difference_and_the_arithmetic(launched):
    code, _, _, error, out = launched["--dry-run"]
    assert code == 0, error
    assert "algorithm.sppo.eta" in out and "What differs from verl's ppo_trainer" in out
    assert "512 prompts x 1 = 512 responses, 2 optimiser updates" in out


def test_a_dry_run_is_only_told_of_the_memory_of_this_machine(launched):
    """It may be meant for others; what ends it is the model's missing tokenizer."""
    _, kind, _, _, out = launched[" ".join(LARGE)]
    assert kind == "MissingFileError" and "peak of the update phase" in out and "this machine would refuse" in out


def test_serl_goes_on_with_fewer_rows_than_a_step_takes(launched):
    code, _, _, error, out = launched[" ".join(FEW)]
    assert code == 0 and "16 prompts x" in out, error


def test_help(launched):
    code, *_, out = launched["--help"]
    assert code == 0 and "--dry-run" in out


@pytest.mark.parametrize("world", WORLDS)
def test_an_environment_that_would_train_something_else_is_refused(launched, world):
    _, kind, named = WORLDS[world]
    code, found, _, error, _ = launched[world]
    assert (code, found) == (2, kind) and named in error


def test_a_missing_critic_is_refused_before_verl_reads_its_files(launched):
    assert {case: launched[" ".join(case)][:2] for case in NO_CRITIC} == {c: [2, k] for c, k in NO_CRITIC.items()}
    assert "bash examples/quickstart.sh --toy step_ppo makes it" in launched[UNMADE][3]


def test_a_reward_model_of_its_own_pool_stays_awake_on_an_accelerator(launched):
    """verl would let it sleep and never wake it."""
    out = launched[" ".join(AWAKE)][4]
    served = out.split("  reward_model:\n")[1]
    assert "enable_resource_pool: true" in served and "2 devices, 1 x 1 train" in out
    assert re.search(r"free_cache_engine: (\w+)", served)[1] == "false"
