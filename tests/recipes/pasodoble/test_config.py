"""Every yaml and launcher composes, each role gets its own derived values, and bad input is refused with a sentence."""

import copy
import functools
import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import recipes.pasodoble
from recipes.errors import ConfigError, LaunchError
from recipes.launch import cluster
from recipes.launch.composition import compose_config
from recipes.pasodoble.main import RECIPE, check, resolve_proposer
from recipes.pasodoble.settings import GameSettings

ROOM = Path(recipes.pasodoble.__file__).parent


def compose(*overrides):
    return compose_config("recipes.pasodoble.config", "pasodoble", list(overrides))


def settings_of(config):
    return GameSettings.from_config(OmegaConf.to_container(config.pasodoble, resolve=True))


def test_what_the_overlay_names_is_derived_again_for_the_proposer_alone():
    config = compose(
        "+proposer.actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096",
        "proposer.data.max_response_length=100",
        "proposer.actor_rollout_ref.rollout.n=4",
        "pasodoble.layout=separate",
        "pasodoble.proposer_gpus_per_node=3",
    )
    resolve_proposer(config, settings_of(config))
    solver, proposer = config.actor_rollout_ref, config.proposer.actor_rollout_ref
    assert (proposer.rollout.log_prob_max_token_len_per_gpu, solver.rollout.log_prob_max_token_len_per_gpu) == (
        4096,
        16384,
    )
    assert (proposer.actor.loss_scale_factor, solver.actor.loss_scale_factor) == (100, 6144)
    assert (proposer.actor.rollout_n, solver.actor.rollout_n) == (4, 6)
    assert (config.proposer.trainer.n_gpus_per_node, config.trainer.n_gpus_per_node) == (3, 4)
    assert proposer.rollout.n_gpus_per_node == 3


def run_with_fakes(tmp_path, script, fake, **environment):
    """Run a launcher whose ``fake`` command writes down its arguments; give them back."""
    log = tmp_path / "arguments.json"
    command = tmp_path / "bin" / fake
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "$@" > "{log}"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"
    subprocess.run(["bash", str(ROOM / script), "extra=1"], env=os.environ | {"PATH": path} | environment, check=True)
    arguments = log.read_text().splitlines()
    assert arguments[-1] == "extra=1"
    return arguments[:-1]


@pytest.mark.parametrize(
    "role, file", [("proposer", "pasodoble_sft.parquet"), ("solver", "solver_pasodoble_sft.parquet")]
)
def test_the_supervised_launcher_composes(tmp_path, role, file):
    out = tmp_path / "out"
    (out / "global_step_7" / "huggingface").mkdir(parents=True)
    (out / "latest_checkpointed_iteration.txt").write_text("7")
    folders = {"OUTPUT_DIR": str(out), "DATA_DIR": str(tmp_path)}
    arguments = run_with_fakes(tmp_path, "run_sft.sh", "torchrun", ROLE=role, **folders)
    # As the launchers read it.
    default = {"solver": compose(), "proposer": compose().proposer}[role].actor_rollout_ref.model.path
    assert (tmp_path / Path(default).name).resolve() == out / "global_step_7" / "huggingface"
    module = arguments.index("recipes.launch.supervised")
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra_compose("sft_trainer_engine", arguments[module + 1 :])
    assert config.data.train_files.endswith(f"/{file}")


def test_the_data_launcher_parses(tmp_path):
    from recipes.pasodoble.cold_start.make_sft_data import parse_arguments

    local = {"GENERATOR_BASE_URL": "http://g/v1", "JUDGE_BASE_URL": "http://j/v1"}
    for environment in ({}, local):
        arguments = run_with_fakes(tmp_path, "generate_sft.sh", "python3", **environment)
        args = parse_arguments(arguments[2:])
        assert args.generator_base_url == environment.get("GENERATOR_BASE_URL")


@functools.cache
def toy():
    return compose("scale=toy")


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """Folders that look like models, and a knowledge file: what a good run is given."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    for name in ("proposer", "solver"):
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        tokenizer.save_pretrained(tmp_path / name)
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    (tmp_path / "knowledge.jsonl").write_text('{"text": "one two three"}\n{"text": "four five"}\n')

    def composed(*overrides):
        config = copy.deepcopy(toy())
        given = {
            "actor_rollout_ref.model.path": f"{tmp_path}/solver",
            "proposer.actor_rollout_ref.model.path": f"{tmp_path}/proposer",
            "pasodoble.knowledge.path": f"{tmp_path}/knowledge.jsonl",
        }
        for key, value in (given | dict(override.split("=") for override in overrides)).items():
            OmegaConf.update(config, key, yaml.safe_load(value), force_add=True)
        return config

    composed.folder = tmp_path
    return composed


def test_a_good_run_passes_the_check(inputs):
    config = inputs()
    check(config)
    assert config.proposer.actor_rollout_ref.rollout.prompt_length == 128


@pytest.mark.parametrize(
    "override, key",
    [
        ("pasodoble.tau=1", "pasodoble.tau"),
        ("proposer.trainer.device=cpu", "proposer.trainer"),
        ("critic.enable=true", "critic.enable"),
        ("actor_rollout_ref.actor.use_dynamic_bsz=false", "actor_rollout_ref.actor.use_dynamic_bsz"),
        ("trainer.v1.trainer_mode=sync", "trainer.v1.trainer_mode"),
        ("trainer.total_training_steps=null", "trainer.total_training_steps"),
    ],
)
def test_a_config_that_cannot_run_is_refused_with_the_key(inputs, override, key):
    with pytest.raises(ConfigError) as refusal:
        check(inputs(override))
    assert refusal.value.key == key


@pytest.mark.parametrize(
    "override",
    [
        "pasodoble.knowledge.text_column=body",
        "pasodoble.knowledge.max_tokens=1",
        "pasodoble.knowledge.path=/nowhere.jsonl",
        "proposer.actor_rollout_ref.model.path=/nowhere",
    ],
)
def test_bad_input_is_refused(inputs, override):
    with pytest.raises((ValueError, LaunchError)):
        check(inputs(override))


def test_how_to_give_the_proposer_a_setting_of_its_own_is_said():
    with pytest.raises(ConfigError, match=r"did you mean actor_\S+, or \+proposer\.actor_\S+\.lr\?"):
        compose("proposer.actor_rollout_ref.actor.optim.lr=1e-5")


@pytest.mark.parametrize("gold", [None, "", " "])
def test_a_held_out_row_without_gold_answer_is_refused(inputs, gold):
    """The game's grader gives 0 where the Proposer wrote no answer, so that nothing later would tell."""
    path = inputs.folder / "held_out.parquet"
    golds = ["7"] * 3 + [gold]
    pq.write_table(pa.table({"reward_model": [{"style": "rule", "ground_truth": g} for g in golds]}), path)
    with pytest.raises(LaunchError, match="row 3 of .*held_out.parquet has no gold answer"):
        check(inputs(f"data.val_files={path}"))


@pytest.mark.parametrize("name", ["proposer", "solver"])
def test_a_tokenizer_without_chat_template_is_refused(inputs, name):
    (inputs.folder / name / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="has no chat template"):
        check(inputs())


@pytest.mark.parametrize(("layout", "devices"), [("colocate", 1), ("separate", 3)])
def test_a_cluster_is_started_with_the_devices_of_both_pools(inputs, layout, devices):
    config = inputs(f"pasodoble.layout={layout}", "pasodoble.proposer_gpus_per_node=2")
    cluster.prepare_ray(config, "cpu", None, RECIPE.more_devices(config))
    assert config.ray_kwargs.ray_init.num_gpus == devices
