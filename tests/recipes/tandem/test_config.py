"""No key of a yaml or a launcher is one that verl would not read; baselines differ in the method alone."""

import functools
from pathlib import Path

import pytest

import recipes.tandem
from recipes.launch.composition import compose_config, flatten, verl_defaults
from recipes.tandem.settings import SECTION

ROOM = Path(recipes.tandem.__file__).parent
PRESETS = sorted(path.stem for path in (ROOM / "config" / "preset").glob("*.yaml"))
SCALES = sorted(path.stem for path in (ROOM / "config" / "scale").glob("*.yaml"))
ENGINE = "actor_rollout_ref.rollout.engine_kwargs.vllm"


@functools.cache
def composed(*overrides):
    return compose_config("recipes.tandem.config", "tandem", list(overrides))


@pytest.mark.parametrize("preset", PRESETS)
def test_no_yaml_adds_a_key_verl_would_not_read(preset):
    shared = ("algorithm.reward_faults", "algorithm.group_hook", "algorithm.show_responses_every")
    own = ("one_gpu.", "algorithm.tandem", *shared, f"{ENGINE}.{SECTION}")
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
