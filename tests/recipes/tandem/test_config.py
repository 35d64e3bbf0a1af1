"""No key of a yaml or a launcher is one that verl would not read; baselines differ in the method alone."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import recipes.tandem
from recipes.launch.composition import compose_config, flatten, refuse_unknown_additions, verl_defaults
from recipes.tandem.engine_settings import SECTION

ROOM = Path(recipes.tandem.__file__).parent
PRESETS = sorted(path.stem for path in (ROOM / "config" / "preset").glob("*.yaml"))
SCALES = sorted(path.stem for path in (ROOM / "config" / "scale").glob("*.yaml"))
ENGINE = "actor_rollout_ref.rollout.engine_kwargs.vllm"


@functools.cache
def composed(*overrides):
    return compose_config("recipes.tandem.config", "tandem", list(overrides))


@pytest.mark.parametrize("preset", PRESETS)
def test_no_yaml_adds_a_key_verl_would_not_read(preset):
    own = ("one_gpu.", "algorithm.tandem", "algorithm.reward_faults", "algorithm.group_hook", f"{ENGINE}.{SECTION}")
    added = {key for scale in SCALES for key in flatten(composed(f"preset={preset}", f"scale={scale}"))}
    added -= set(flatten(verl_defaults()))
    assert {key for key in added if not key.startswith(own)} <= {
        "actor_rollout_ref.model.override_config.attn_implementation",
        # a field of the dataclass behind the node, not in the yaml
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    }


def test_experiments_do_not_share_checkpoints():
    folders = [composed(f"preset={p}", f"scale={s}").trainer.default_local_dir for p in PRESETS for s in SCALES]
    assert len(set(folders)) == len(folders)


def test_baselines_differ_in_the_method_only():
    tandem = flatten(composed("preset=tandem", "scale=qwen3_4b"))
    for preset, keys in (("grpo", set()), ("grpo_n16", {"n"}), ("kl", {"use_kl_loss", "kl_loss_type", "kl_loss_coef"})):
        other = flatten(composed(f"preset={preset}", "scale=qwen3_4b"))
        changed = {key for key in tandem.keys() | other.keys() if tandem.get(key) != other.get(key)}
        kept = {key.rpartition(".")[2] for key in changed if not key.startswith(f"{ENGINE}.{SECTION}")}
        assert kept - {ENGINE.rpartition(".")[2]} <= keys | {
            "name",
            "default_agent_loop",
            "agent_loop_manager_class",
            "experiment_name",
        }


def launcher_arguments(script, tmp_path, *arguments, **environment):
    """What a launcher hands to Python: it is run with an interpreter in front that only writes down its arguments."""
    recorded, stand_in = tmp_path / "arguments.json", tmp_path / "python3"
    stand_in.write_text(
        f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open({str(recorded)!r}, 'w'))\n"
    )
    stand_in.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        ["bash", str(script), *arguments], check=True, timeout=60, env=os.environ | {"PATH": path} | environment
    )
    return json.loads(recorded.read_text())


def test_a_launcher_hands_over_its_knobs_as_keys_that_exist(tmp_path):
    knobs = {"MODEL_PATH": "/models/some model", "NGPUS": "4", "LOGGER": "console,wandb"}
    arguments = launcher_arguments(ROOM / "run_qwen3_4b.sh", tmp_path, "trainer.save_freq=7", **knobs)
    assert arguments[:2] == ["-m", "recipes.tandem.main"]
    config = composed(*arguments[2:])
    refuse_unknown_additions(arguments[2:], verl_defaults(), ["algorithm.tandem"])
    assert (config.trainer.save_freq, config.trainer.n_gpus_per_node) == (7, 4)
    assert config.actor_rollout_ref.model.path == "/models/some model"
    assert list(config.trainer.logger) == ["console", "wandb"]
    section = config.actor_rollout_ref.rollout.engine_kwargs.vllm[SECTION]
    assert section.junior_model == "/models/some model"
