"""Every shipped configuration composes and passes; what SeRL cannot run with is refused with the key to set."""

import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipes.common.split_resources import choose_backend, rollout_devices
from recipes.errors import ConfigError, DataError, MissingFileError
from recipes.launch.composition import compose_config, refuse_unknown_additions, verl_defaults
from recipes.launch.worker_checks import check_workers
from recipes.serl.adapters.generation import rollout_engines
from recipes.serl.guards import check_serl_config
from recipes.serl.schedule import Schedule
from recipes.serl.seeds.prepare import ANSWER_TEMPLATE
from recipes.serl.settings import SerlSettings

VARIANTS = ("self_instruct", "majority", "ground_truth", "ttrl")
ESTIMATORS = ("reinforce_pp", "rloo", "grpo", "restrain")
CONVENTIONS = ("default", "reference")
SCALES = ("toy", "llama3_2_3b", "qwen2_5_7b", "qwen3_4b")
ROOM = Path(__file__).resolve().parents[3] / "recipes" / "serl"
# Those with knobs for several devices; the one for a single GPU is held by tests/recipes/launch/test_scales.py.
SCRIPTS = sorted(path.name for path in ROOM.glob("run_*.sh") if not path.name.endswith("_1gpu.sh"))


@pytest.fixture
def seeds(tmp_path):
    path = tmp_path / "seeds.jsonl"
    path.write_text("".join(json.dumps({"problem": f"Question number {i}?"}) + "\n" for i in range(10)))
    return path


def composed(seeds, *overrides):
    return compose_config("recipes.serl.config", "serl", [f"serl.seeds={seeds}", *overrides])


@pytest.fixture(scope="module")
def base():
    """One composition for all refusals: composing takes a second, changing a copy nothing."""
    return compose_config("recipes.serl.config", "serl", [])


def changed(base, seeds, changes):
    config = base.copy()
    for key, value in {"serl.seeds": str(seeds), **changes}.items():
        OmegaConf.update(config, key, value, force_add=True)
    return config


TAUGHT = {
    "serl.variant": "majority",
    "serl.teacher.answers": 8,
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.ref.strategy": "fsdp2",
}
SPLIT = {
    "actor_rollout_ref.hybrid_engine": False,
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 8,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl",
}
COMBINATIONS = [
    groups
    for groups in itertools.product(VARIANTS, ESTIMATORS, CONVENTIONS, SCALES)
    if groups[:2] != ("ground_truth", "restrain")  # it needs the vote
]
# Every pair of scale and variant, estimator or convention occurs in these.
FEW = [
    (VARIANTS[(i + i // 4) % 4], ESTIMATORS[(i // 4) % 4], CONVENTIONS[i % 2 ^ i // 4 % 2], SCALES[i % 4])
    for i in range(16)
]


@pytest.mark.parametrize(
    "groups",
    [pytest.param(groups, marks=() if groups in FEW else pytest.mark.long) for groups in COMBINATIONS],
    ids="-".join,
)
def test_every_combination_of_groups_passes(seeds, groups):
    names = ("variant", "estimator", "convention", "scale")
    check_serl_config(composed(seeds, *(f"{name}={value}" for name, value in zip(names, groups, strict=True))))


def test_the_reference_convention_has_the_constants_of_the_original(seeds):
    config = composed(seeds, "convention=reference")
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.data.train_batch_size, rollout.n, actor.ppo_mini_batch_size) == (16, 16, 1)
    assert (rollout.temperature, rollout.top_p, rollout.max_model_len) == (1.0, 1.0, 2048)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (1024, 1024)
    optim = actor.optim
    assert (optim.lr, optim.lr_scheduler_type, optim.min_lr_ratio, optim.lr_warmup_steps_ratio) == (
        5e-7,
        "cosine",
        0.1,
        0.03,
    )
    assert (list(optim.betas), optim.weight_decay, optim.clip_grad, actor.clip_ratio) == ([0.9, 0.95], 0.0, 1.0, 0.2)
    assert config.algorithm.use_kl_in_reward and config.algorithm.kl_ctrl.kl_coef == 1e-4
    serl = config.serl
    assert (serl.instructions.lowercase_like_reference, serl.vote.question_in_text) == (True, True)
    assert (serl.instructions.similarity_scope, serl.vote.convention, serl.vote.ties) == (
        "pool",
        "reference",
        "earliest",
    )
    assert (serl.instructions.few_shot_generation_batch_size, serl.instructions.fall_back_to_seeds) == (4, False)
    assert serl.answer_template == "{question}" and rollout.agent.default_agent_loop == "serl_raw_prompt"


@pytest.mark.parametrize("scale", ["toy", "qwen3_4b"])
def test_co_rewarding_has_the_authors_sizes(seeds, scale):
    config = composed(seeds, "variant=co_rewarding", "estimator=grpo", f"scale={scale}")
    check_serl_config(config)
    teacher = SerlSettings.from_mapping(OmegaConf.to_container(config.serl, resolve=True)).teacher
    assert (teacher.answers, teacher.rate_first, teacher.rate_last) == (8, 0.01, 1e-5)
    assert config.actor_rollout_ref.ref.strategy == "fsdp2" and config.serl.reward_difficulty_bounds == [0.0, 1.0]
    if scale != "toy":
        assert config.actor_rollout_ref.rollout.n == 8


def test_grpo_has_its_penalty_in_the_loss_with_the_same_coefficient(seeds):
    config = composed(seeds, "estimator=grpo", "algorithm.kl_ctrl.kl_coef=1e-3")
    actor = config.actor_rollout_ref.actor
    assert (actor.use_kl_loss, actor.kl_loss_type, actor.kl_loss_coef) == (True, "low_var_kl", 1e-3)
    assert not config.algorithm.use_kl_in_reward


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer.v1.trainer_mode": "sync"}, "trainer.v1.trainer_mode=serl, found sync"),
        ({"algorithm.adv_estimator": "gae"}, "set algorithm.adv_estimator=serl_reinforce_pp or"),
        ({"algorithm.adv_estimator": "serl_grpo"}, "use_kl_in_reward=false"),
        ({"algorithm.adv_estimator": "serl_rloo", "algorithm.gamma": 0.9}, "algorithm.gamma=1"),
        ({"algorithm.filter_groups.enable": True}, "algorithm.filter_groups.enable=false"),
        ({"critic.enable": True}, "critic.enable=false"),
        ({"data.gen_batch_size": 4}, "data.gen_batch_size=null"),
        ({"trainer.v1.sampler.sync_refill_failed_groups": True}, "sync_refill_failed_groups=false"),
        ({"actor_rollout_ref.rollout.n": 1}, "rollout.n of at least 2"),
        ({"actor_rollout_ref.actor.ppo_mini_batch_size": 3}, "multiple of"),
        ({"serl.vote.trained_share": 0.3}, "serl.vote.trained_share=0.3 of 16 answers is 4.8"),
        ({"serl.vote.trained_share": 0.625}, "multiple of the 10 answers"),
        ({"serl.vote.trained_share": 0.5, "actor_rollout_ref.actor.ppo_mini_batch_size": 16}, "divide the 128 rows"),
        ({"serl.vote.rule": "restrain"}, "set both by estimator=restrain, found restrain and serl_reinforce_pp"),
        ({"algorithm.adv_estimator": "serl_given"}, "set both by estimator=restrain, found majority and serl_given"),
        ({"serl.vote.flip_weights": True}, "serl.variant=majority, found self_instruct"),
        ({"serl.vote.rule": "scrl", "serl.variant": "ground_truth"}, "serl.vote.rule=scrl needs the vote"),
        ({"serl.vote.rule": "rent", "serl.vote.convention": "reference"}, "serl.vote.convention=default"),
        ({"serl.vote.rule": "rent", "algorithm.rollout_correction.bypass_mode": True}, "bypass_mode=false"),
        (
            {"serl.vote.rule": "self_certainty", "actor_rollout_ref.model.use_fused_kernels": True},
            "use_fused_kernels=false",
        ),
        ({"serl.vote.rule": "self_certainty", "actor_rollout_ref.actor.strategy": "megatron"}, "fsdp2 or fsdp"),
        ({"serl.vote.rule": "self_certainty", "serl.variant": "ground_truth"}, "needs the vote"),
        ({"serl.teacher.answers": 8}, "labels of a dataset's questions: set serl.variant=majority"),
        (TAUGHT | {"serl.vote.rule": "rent"}, "serl.vote.rule=majority, found rent"),
        (TAUGHT | {"serl.vote.convention": "reference"}, "serl.vote.convention=default"),
        (TAUGHT | {"serl.vote.flip_weights": True}, "serl.vote.flip_weights=false"),
        (TAUGHT | {"algorithm.use_kl_in_reward": False}, "actor_rollout_ref.actor.use_kl_loss=true"),
        (TAUGHT | {"actor_rollout_ref.model.lora_rank": 8}, "which is no average of the policy"),
        (TAUGHT | {"actor_rollout_ref.ref.strategy": "fsdp"}, "actor_rollout_ref.ref.strategy=fsdp2, found fsdp"),
        (TAUGHT | {"actor_rollout_ref.ref.fsdp_config.model_dtype": "bf16"}, "ref.fsdp_config.model_dtype=fp32"),
        (TAUGHT | SPLIT, "resources=colocated, found split"),
        (
            {
                "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": False,
                "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 5,
            },
            "must divide the 16 rows",
        ),
        ({"actor_rollout_ref.rollout.max_model_len": 1500}, "at least 2048"),
        ({"serl.reward_difficulty_bounds": [0.9, 0.1]}, "serl.reward_difficulty_bounds"),
        ({"serl.answer_template": "ask"}, "must contain {question}"),
        ({"serl.instructions.few_shot_generation": 11}, "holds 10 seeds"),
        ({"serl.instructions.prompt_file": "nowhere.json"}, "nowhere.json does not exist"),
        ({"serl.no_such_key": 1}, "unknown key serl.no_such_key"),
    ],
)
def test_what_cannot_run_is_refused_with_the_key(base, seeds, changes, message):
    with pytest.raises((ConfigError, MissingFileError)) as refusal:
        check_serl_config(changed(base, seeds, changes))
    assert message in str(refusal.value)


def test_seed_files_are_read_before_anything_starts(base, seeds, tmp_path):
    with pytest.raises(MissingFileError, match="none.jsonl does not exist"):
        check_serl_config(changed(base, tmp_path / "none.jsonl", {}))
    with pytest.raises(DataError, match="has no column 'question'; it has problem"):
        check_serl_config(changed(base, seeds, {"serl.question_key": "question"}))


def test_length_of_the_original_run_follows_from_the_config(base):
    config = base
    schedule = Schedule(
        instructions_num_per_iteration=config.serl.instructions_num_per_iteration,
        prompts_per_step=config.data.train_batch_size,
    )
    updates_per_step = config.data.train_batch_size // config.actor_rollout_ref.actor.ppo_mini_batch_size
    assert (schedule.max_steps, schedule.max_steps * updates_per_step) == (125, 2000)


def test_prepared_data_asks_as_the_default_convention_does(seeds):
    assert composed(seeds).serl.answer_template == ANSWER_TEMPLATE


@pytest.mark.parametrize(("platform", "backend"), [([], "nccl"), (["+platform=cpu"], "gloo")], ids=["cuda", "cpu"])
def test_split_resources_take_as_many_devices_again(seeds, platform, backend):
    config = composed(seeds, *platform, "resources=split", "trainer.nnodes=2")
    choose_backend(config)
    check_serl_config(config)
    rollout = config.actor_rollout_ref.rollout
    assert not config.actor_rollout_ref.hybrid_engine and not rollout.free_cache_engine
    assert (rollout.nnodes, rollout.n_gpus_per_node, rollout_devices(config)) == (2, 8, 16)
    assert rollout.checkpoint_engine.backend == backend


def test_each_rollout_engine_gets_a_few_shot_prompt(seeds):
    config = composed(seeds, "trainer.nnodes=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=2")
    assert config.serl.instructions.few_shot_generation_batch_size is None
    assert rollout_engines(config) == 8
    assert rollout_engines(composed(seeds, "resources=split", "actor_rollout_ref.rollout.n_gpus_per_node=3")) == 3
    assert rollout_engines(composed(seeds, "scale=toy")) == 1


@pytest.mark.parametrize("steps", [1, 2, 20, 125])
def test_every_step_trains_at_a_rate_above_zero_that_never_rises_after_the_warm_up(base, steps):
    import torch
    from verl.utils.torch_functional import get_cosine_schedule_with_warmup

    config = base.copy()
    optim = trainer_with(config, steps * config.data.train_batch_size).config.actor_rollout_ref.actor.optim
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    warmup = int(optim.lr_warmup_steps_ratio * optim.total_training_steps)
    scheduler = get_cosine_schedule_with_warmup(
        optimizer,
        warmup,
        optim.total_training_steps,
        min_lr_ratio=optim.min_lr_ratio,
        zero_indexed_step=optim.zero_indexed_step,
    )
    rates = []
    for _ in range(steps):
        rates += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    assert min(rates) > 0.1 and rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert steps < 20 or rates[-1] < 0.12


def trainer_with(config, rows):
    """A trainer of `variant=majority` that has opened a dataset of so many rows."""
    from recipes.serl.adapters.trainer import SerlTrainer

    made = SerlTrainer.__new__(SerlTrainer)
    OmegaConf.update(config, "trainer.total_epochs", 1)
    OmegaConf.set_struct(config, True)
    made.config, made.settings = config, SerlSettings(variant="majority", instructions_num_per_iteration=7500)
    made.set_length(rows)
    return made


@pytest.mark.parametrize(("rows", "steps"), [(8, 1), (16, 1), (30, 2), (100, 7)])
def test_small_data_trains_to_its_end(base, rows, steps):
    made = trainer_with(base.copy(), rows)
    assert made.steps_per_epoch == made.total_training_steps == steps
    assert made.schedule.prompts_left(0) == rows


def test_resources_are_shared_unless_asked_otherwise(seeds):
    config = composed(seeds)
    before = config.copy()
    choose_backend(config)
    assert config == before and config.actor_rollout_ref.hybrid_engine and rollout_devices(config) == 0


def test_split_resources_are_checked(base, seeds):
    with pytest.raises(ConfigError, match="rollout.nnodes=0 x n_gpus_per_node=8 leaves rollouts without devices"):
        check_serl_config(changed(base, seeds, {"actor_rollout_ref.hybrid_engine": False}))


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_an_update_has_a_row_for_every_gpu_of_several_nodes(script, nodes, seeds, tmp_path):
    arguments = handed_over(script, tmp_path, {"NNODES": str(nodes)})
    config = composed(seeds, *arguments)
    check_serl_config(config)
    check_workers(config)
    rows = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    assert rows % (8 * nodes) == 0 and (nodes > 2 or rows == 16)


def handed_over(script, tmp_path, knobs):
    """The arguments that a launcher gives to the recipe."""
    stub = tmp_path / "python3"
    stub.write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@"\n')
    stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **knobs}
    run = subprocess.run(["bash", str(ROOM / script)], env=environment, capture_output=True, text=True, check=True)
    arguments = run.stdout.split("\0")[:-1]
    assert arguments[:2] == ["-m", "recipes.serl.main"]
    return arguments[2:]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("resources", ["colocated", "split"])
def test_launchers_hand_over_keys_that_exist(script, resources, seeds, tmp_path):
    knobs = {"RESOURCES": "split", "NGPUS": "2", "ROLLOUT_NGPUS": "6"} if resources == "split" else {}
    arguments = handed_over(script, tmp_path, knobs)
    config = composed(seeds, *arguments)
    refuse_unknown_additions(arguments, verl_defaults(), ["serl"])
    choose_backend(config)
    check_serl_config(config)
    assert (config.trainer.n_gpus_per_node, rollout_devices(config)) == ((2, 6) if knobs else (8, 0))


def test_ttrl_has_its_constants_and_trains_every_row_in_every_epoch(seeds):
    config = composed(seeds, "variant=ttrl", "estimator=grpo")
    settings = SerlSettings.from_mapping(OmegaConf.to_container(config.serl, resolve=True))
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.n, settings.trained_of(rollout.n), config.data.train_batch_size) == (64, 32, 8)
    assert settings.reward_difficulty_bounds == (0.0, 1.0) and settings.iterations == config.trainer.total_epochs
    assert config.algorithm.adv_estimator == "serl_grpo"
    with pytest.raises(ConfigError, match="serl.variant=self_instruct or majority"):
        check_serl_config(composed(seeds, "variant=ground_truth", "estimator=restrain"))


def test_an_iteration_without_a_number_is_the_dataset(base):
    made = trainer_with(base.copy(), 30)
    made.settings = SerlSettings(variant="majority", instructions_num_per_iteration=None, iterations=2)
    OmegaConf.update(made.config, "trainer.total_epochs", 2)
    OmegaConf.update(made.config, "trainer.total_training_steps", None)
    made.set_length(30)
    assert made.schedule.total_prompts == 60 and made.total_training_steps == 4
    assert [made.schedule.iteration(trained) for trained in (0, 29, 30, 60)] == [1, 1, 2, 2]
