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
from recipes.errors import LaunchError
from recipes.launch import cluster
from recipes.launch.composition import compose_config
from recipes.pasodoble.main import RECIPE, check, resolve_proposer
from recipes.pasodoble.rounds import within_band
from recipes.pasodoble.settings import GameSettings

ROOM = Path(recipes.pasodoble.__file__).parent
SCALES = [
    name if name == "toy" else pytest.param(name, marks=pytest.mark.long)
    for name in sorted(path.stem for path in (ROOM / "config" / "scale").glob("*.yaml"))
]


def compose(*overrides):
    return compose_config("recipes.pasodoble.config", "pasodoble", list(overrides))


def settings_of(config):
    return GameSettings.from_config(OmegaConf.to_container(config.pasodoble, resolve=True))


@pytest.mark.parametrize("variant, steps, save", [("online", 2000, 40), ("offline", 200, 8)])
@pytest.mark.parametrize("scale", SCALES)
def test_every_combination_composes(scale, variant, steps, save):
    config = compose(f"scale={scale}", f"variant={variant}")
    resolve_proposer(config, settings_of(config))
    assert config.trainer.v1.trainer_mode == f"pasodoble_{variant}"
    if scale != "toy":
        assert (config.trainer.total_training_steps, config.trainer.save_freq) == (steps, save)
    for tree in (config, config.proposer):
        rollout, actor = tree.actor_rollout_ref.rollout, tree.actor_rollout_ref.actor
        assert (rollout.prompt_length, rollout.response_length) == (
            tree.data.max_prompt_length,
            tree.data.max_response_length,
        )
        assert actor.loss_scale_factor == tree.data.max_response_length
        assert actor.rollout_n == rollout.n == 6


def test_r_zero_has_its_constants():
    config = compose("scale=toy", "variant=r_zero")
    resolve_proposer(config, settings_of(config))
    settings = settings_of(config)
    assert (settings.round.reward, settings.round.p_source) == ("r_zero", "majority")
    assert (settings.offline.proposer_updates, settings.offline.solver_updates) == (5, 15)
    assert (config.actor_rollout_ref.rollout.n, config.proposer.actor_rollout_ref.rollout.n) == (10, 4)
    learnt = [share for share in range(11) if within_band(share / 10, settings.round)]
    assert learnt == [3, 4, 5, 6, 7, 8]


def test_the_reference_values_reach_both_roles():
    config = compose()
    resolve_proposer(config, settings_of(config))
    for tree, prompt_length in ((config, 512), (config.proposer, 1280)):
        rollout, actor = tree.actor_rollout_ref.rollout, tree.actor_rollout_ref.actor
        assert (rollout.prompt_length, rollout.response_length, rollout.n) == (prompt_length, 6144, 6)
        assert (rollout.temperature, rollout.top_p, rollout.top_k) == (0.6, 1.0, -1)
        assert (actor.optim.lr, actor.grad_clip, actor.clip_ratio_high, actor.optim.weight_decay) == (
            1e-6,
            1.0,
            0.2,
            0.0,
        )
        assert (actor.loss_agg_mode, actor.loss_scale_factor) == ("seq-mean-token-sum-norm", 6144)
        # no dual clip: an advantage below 0 is not bounded by a ratio of 3
        assert actor.clip_ratio_c == 1e9
        assert tree.algorithm.norm_adv_by_std_in_grpo and tree.algorithm.adv_estimator == "grpo"
    assert GameSettings.from_config({}) == settings_of(config)


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
    "script, gpus, layout",
    [
        ("run_online_4gpu.sh", 4, "colocate"),
        ("run_offline_8gpu.sh", 8, "separate"),
        pytest.param("run_online_8gpu.sh", 8, "colocate", marks=pytest.mark.long),
        pytest.param("run_offline_4gpu.sh", 4, "separate", marks=pytest.mark.long),
        pytest.param("run_qwen3_4b.sh", 8, "colocate", marks=pytest.mark.long),
    ],
)
def test_every_launcher_composes(tmp_path, monkeypatch, script, gpus, layout):
    names = {"SOLVER_MODEL_NAME": "my/solver", "PROPOSER_MODEL_NAME": "my/proposer", "LAYOUT": layout}
    arguments = run_with_fakes(tmp_path, script, "python3", **names)
    assert arguments[:2] == ["-m", "recipes.pasodoble.main"]
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    config = compose(*arguments[2:])
    resolve_proposer(config, settings_of(config))
    assert config.actor_rollout_ref.model.path == "my/solver"
    assert config.proposer.actor_rollout_ref.model.path == "my/proposer"
    expected = gpus if layout == "colocate" else gpus // 2
    assert config.trainer.n_gpus_per_node == config.proposer.trainer.n_gpus_per_node == expected
    real_batch = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    assert real_batch % expected == 0


@pytest.mark.parametrize(
    "role, file", [("proposer", "pasodoble_sft.parquet"), ("solver", "solver_pasodoble_sft.parquet")]
)
def test_the_supervised_launcher_composes(tmp_path, role, file):
    out = tmp_path / "out"
    out.mkdir()
    (out / "latest_checkpointed_iteration.txt").write_text("7")
    arguments = run_with_fakes(tmp_path, "run_sft.sh", "torchrun", ROLE=role, OUTPUT_DIR=str(out))
    module = arguments.index("recipes.launch.supervised")
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra_compose("sft_trainer_engine", arguments[module + 1 :])
    assert config.data.train_files.endswith(f"/{file}")
    assert (config.optim.lr, config.optim.lr_scheduler_type, config.data.train_batch_size) == (1e-5, "cosine", 32)
    assert (config.trainer.total_epochs, config.data.max_length) == (3, 8192)


def test_the_data_launcher_parses(tmp_path):
    from recipes.pasodoble.cold_start.make_sft_data import parse_arguments

    local = {"GENERATOR_BASE_URL": "http://g/v1", "JUDGE_BASE_URL": "http://j/v1"}
    for environment in ({}, local):
        arguments = run_with_fakes(tmp_path, "generate_sft.sh", "python3", **environment)
        args = parse_arguments(arguments[2:])
        assert (args.records, args.judge_model, args.generator_model) == (2800, "gpt-5-mini", "Qwen/Qwen3-14B")
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
    "override, sentence",
    [
        ("pasodoble.knowledge.text_column=body", r"no column 'body'; it has \['text'\]"),
        ("pasodoble.knowledge.max_tokens=1", r"all 2 documents are longer than 1 tokens \(the shortest has 2\)"),
        ("pasodoble.knowledge.path=/nowhere.jsonl", "does not exist"),
        ("pasodoble.knowledge.path=null", "pasodoble.knowledge.path is not set"),
        ("proposer.actor_rollout_ref.model.path=/nowhere", "/nowhere"),
        ("pasodoble.tau=1", "unknown key pasodoble.tau"),
        ("pasodoble.round.tau_low=1", "need 0 <= tau_low < tau_high"),
        ("pasodoble.layout=apart", "pasodoble.layout|layout must be one of"),
        ("pasodoble.prompts.solver=x", "unknown key pasodoble.prompts.solver"),
        ("proposer.trainer.device=cpu", "proposer.trainer cannot differ"),
        ("critic.enable=true", "does not go with PasoDoble: set critic.enable=false, found true"),
        (
            "actor_rollout_ref.actor.use_dynamic_bsz=false",
            "needs it: set actor_rollout_ref.actor.use_dynamic_bsz=true",
        ),
        ("trainer.v1.trainer_mode=sync", "trainer_mode=pasodoble_online or pasodoble_offline, found sync"),
        ("trainer.total_training_steps=null", "total_training_steps must be set"),
    ],
)
def test_bad_input_is_refused(inputs, override, sentence):
    with pytest.raises((ValueError, LaunchError), match=sentence):
        check(inputs(override))


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
