"""No key of a yaml or a launcher is one that verl would not read; presets are matched."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import recipes.sppo
from recipes.launch.composition import compose_config, flatten, refuse_unknown_additions, verl_defaults
from recipes.sppo.guards import check_sppo_config

ROOM = Path(recipes.sppo.__file__).parent
PRESETS = sorted(path.stem for path in (ROOM / "config" / "preset").glob("*.yaml"))
SCALES = sorted(path.stem for path in (ROOM / "config" / "scale").glob("*.yaml"))
OWN = {f"algorithm.sppo.{name}" for name in ("eta", "scope", "baseline", "score", "preference", "tau", "pairs")}
OPTIMIZER = "actor_rollout_ref.actor.optim.override_optimizer_config"
DEFAULTS = verl_defaults()
OWN |= {"algorithm.sppo.reference", "data.apply_chat_template_kwargs.enable_thinking"}
OWN |= {f"{OPTIMIZER}.updates_per_iteration", f"{OPTIMIZER}.warmup_ratio"}


@functools.cache
def composed(*overrides):
    return compose_config("recipes.sppo.config", "sppo", list(overrides))


@pytest.mark.parametrize("preset", PRESETS)
def test_no_yaml_adds_a_key_verl_would_not_read(preset):
    added = {key for scale in SCALES for key in flatten(composed(f"preset={preset}", f"scale={scale}"))}
    added -= set(flatten(DEFAULTS))
    shared = {
        key
        for key in added
        if key.startswith(
            ("algorithm.reward_faults.", "algorithm.group_hook.", "algorithm.show_", "one_gpu.", "sizes.")
        )
    }
    assert added - shared <= OWN


def test_experiments_do_not_share_checkpoints():
    folders = [composed(f"preset={p}", f"scale={s}").trainer.default_local_dir for p in PRESETS for s in SCALES]
    assert len(set(folders)) == len(folders)


def test_presets_are_matched_in_updates_and_verl_and_grpo_in_responses():
    for scale in SCALES:
        sizes = {}
        for preset in PRESETS:
            config = composed(f"preset={preset}", f"scale={scale}")
            n = config.actor_rollout_ref.rollout.n
            sizes[preset] = (
                config.data.train_batch_size * n,
                config.data.train_batch_size // config.actor_rollout_ref.actor.ppo_mini_batch_size,
                config.trainer.total_training_steps,
            )
        assert sizes["verl"] == sizes["grpo"]
        assert sizes["paper"][1:] == sizes["verl"][1:]
        assert 0.9 < sizes["paper"][0] / sizes["verl"][0] <= 1.25


def launcher_arguments(script, tmp_path, *arguments, **environment):
    """What a launcher hands to Python: it is run with an interpreter in front that only writes down its arguments."""
    recorded = tmp_path / "arguments.json"
    stand_in = tmp_path / "python3"
    stand_in.write_text(
        f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open({str(recorded)!r}, 'w'))\n"
    )
    stand_in.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", str(script), *arguments], check=True, timeout=60, env=os.environ | {"PATH": path} | environment
    )
    return json.loads(recorded.read_text())


KNOBS = {
    "MODEL_PATH": "/models/some model",
    "TRAIN_FILES": "[/data/a.parquet,/data/b.parquet]",
    "VAL_FILES": "/data/the test.parquet",
    "ROLLOUT": "sglang",
    "TP": "2",
    "GPU_MEMORY_UTILIZATION": "0.4",
    "MAX_TOKENS_PER_GPU": "8192",
    "OFFLOAD": "true",
    "NGPUS": "8",
    "NNODES": "2",
    "LOGGER": "console,wandb",
    "PROJECT": "project",
    "EXPERIMENT": "experiment",
}


def test_a_launcher_hands_over_its_knobs_as_keys_that_exist(tmp_path):
    arguments = launcher_arguments(ROOM / "run_qwen3_4b.sh", tmp_path, "trainer.save_freq=7", **KNOBS)
    assert arguments[:2] == ["-m", "recipes.sppo.main"]
    config = composed(*arguments[2:])
    refuse_unknown_additions(arguments[2:], DEFAULTS, ["algorithm.sppo"])
    check_sppo_config(config)
    assert config.trainer.save_freq == 7
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.actor_rollout_ref.model.path == "/models/some model"
    assert list(config.data.train_files) == ["/data/a.parquet", "/data/b.parquet"]
    assert config.data.val_files == "/data/the test.parquet"
    assert (rollout.name, rollout.tensor_model_parallel_size, rollout.gpu_memory_utilization) == ("sglang", 2, 0.4)
    assert actor.use_dynamic_bsz and actor.ppo_max_token_len_per_gpu == 8192
    assert actor.fsdp_config.param_offload and actor.fsdp_config.optimizer_offload
    assert (config.trainer.n_gpus_per_node, config.trainer.nnodes) == (8, 2)
    assert list(config.trainer.logger) == ["console", "wandb"]
    assert (config.trainer.project_name, config.trainer.experiment_name) == ("project", "experiment")


def test_a_launcher_logs_to_wandb_where_there_is_a_key(tmp_path):
    found = launcher_arguments(ROOM / "run_qwen3_4b.sh", tmp_path, WANDB_API_KEY="key")
    assert "trainer.logger=[console,wandb]" in found
    found = launcher_arguments(ROOM / "run_qwen3_4b.sh", tmp_path, WANDB_API_KEY="key", LOGGER="console")
    assert "trainer.logger=[console]" in found
