"""Sizes that verl asserts inside its workers are refused before the start, and valid ones are not."""

import sys

import pytest
from omegaconf import OmegaConf

from recipes.errors import ConfigError
from recipes.launch import checks
from recipes.launch.composition import verl_defaults
from recipes.launch.worker_checks import check_workers


@pytest.fixture(scope="module")
def defaults():
    config = verl_defaults().copy()
    OmegaConf.set_readonly(config, False)
    OmegaConf.set_struct(config, False)
    config.algorithm.adv_estimator = "grpo"
    group = config.actor_rollout_ref
    config.data.update(train_batch_size=64, max_prompt_length=256, max_response_length=768)
    group.model.use_remove_padding = True
    group.actor.update(ppo_mini_batch_size=64, use_dynamic_bsz=True, ppo_max_token_len_per_gpu=2048)
    group.rollout.update(n=4, log_prob_use_dynamic_bsz=True, log_prob_max_token_len_per_gpu=2048)
    group.rollout.tensor_model_parallel_size = 1
    group.ref.update(log_prob_use_dynamic_bsz=True, log_prob_max_token_len_per_gpu=2048)
    config.trainer.update(nnodes=1, n_gpus_per_node=8)
    return config


def changed(defaults, *overrides):
    return OmegaConf.merge(defaults, OmegaConf.from_dotlist(list(overrides)))


def refuses(config, key, trained=None):
    with pytest.raises(ConfigError) as refused:
        check_workers(config, trained)
    assert refused.value.key == key


ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
LOG_PROB, REF_TOKENS = f"{ROLLOUT}.log_prob", f"{REF}.log_prob_max_token_len_per_gpu"
FIXED = [f"{ACTOR}.use_dynamic_bsz=false", f"{ROLLOUT}.log_prob_use_dynamic_bsz=false"]
FIXED += [f"{ACTOR}.ppo_micro_batch_size_per_gpu=8", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8"]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        FIXED,
        # 32 responses on 4 data-parallel ranks of 2 devices each: 8 ranks would not do
        [*FIXED, f"{ACTOR}.ppo_mini_batch_size=8", f"{ACTOR}.ulysses_sequence_parallel_size=2"],
        [f"{ACTOR}.ppo_mini_batch_size=1", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2"],
        [f"{ACTOR}.ppo_max_token_len_per_gpu=512", f"{ROLLOUT}.log_prob_max_token_len_per_gpu=512"]
        + [f"{ACTOR}.ulysses_sequence_parallel_size=2"],
        ["trainer.nnodes=2"],
        [f"{ROLLOUT}.tensor_model_parallel_size=4"],
        [f"{ROLLOUT}.tensor_model_parallel_size=16", "trainer.nnodes=2"],
        [f"{ROLLOUT}.max_model_len=1024"],
    ],
)
def test_what_verl_runs_passes(defaults, overrides):
    check_workers(changed(defaults, *overrides))


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        # packed micro-batches once skipped this check, and verl stopped after the first rollouts
        ([f"{ACTOR}.ppo_mini_batch_size=52", f"{ROLLOUT}.n=5"], f"{ACTOR}.ppo_mini_batch_size"),
        ([f"{ACTOR}.ppo_mini_batch_size=4", "trainer.nnodes=4"], f"{ACTOR}.ppo_mini_batch_size"),
        ([*FIXED, f"{ACTOR}.ppo_micro_batch_size_per_gpu=3"], f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        ([*FIXED, f"{LOG_PROB}_micro_batch_size_per_gpu=64"], f"{LOG_PROB}_micro_batch_size_per_gpu"),
        ([*FIXED[:2], FIXED[3]], f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        ([FIXED[0], FIXED[2]], f"{LOG_PROB}_use_dynamic_bsz"),
        ([f"{ACTOR}.use_kl_loss=true", f"{REF_TOKENS}=512"], REF_TOKENS),
        ([f"{ACTOR}.ppo_max_token_len_per_gpu=1000"], f"{ACTOR}.ppo_max_token_len_per_gpu"),
        ([f"{ACTOR}.ulysses_sequence_parallel_size=3"], f"{ACTOR}.ulysses_sequence_parallel_size"),
        ([f"{ROLLOUT}.tensor_model_parallel_size=3"], f"{ROLLOUT}.tensor_model_parallel_size"),
        ([f"{ROLLOUT}.max_model_len=1000"], f"{ROLLOUT}.max_model_len"),
        (["critic.enable=true", "critic.ppo_mini_batch_size=1"], "critic.ppo_mini_batch_size"),
    ],
)
def test_what_verl_asserts_in_a_worker_or_cuts_silently_is_refused(defaults, overrides, key):
    refuses(changed(defaults, *overrides), key)


def test_a_recipe_with_updates_of_its_own_is_held_to_those(defaults):
    odd = changed(defaults, f"{ACTOR}.ppo_mini_batch_size=3", f"{ROLLOUT}.n=1")
    check_workers(odd, {})
    check_workers(odd, {ACTOR: 16})
    refuses(changed(defaults, f"{ROLLOUT}.n=1"), f"{ACTOR}.ppo_mini_batch_size", {ACTOR: 12})


def test_other_engines_are_left_to_verl(defaults):
    check_workers(changed(defaults, f"{ACTOR}.strategy=megatron", f"{ACTOR}.ppo_mini_batch_size=1"))


ULYSSES, SDPA = "ulysses_sequence_parallel_size=2", "model.override_config.attn_implementation=sdpa"


@pytest.mark.parametrize("role", [ACTOR, REF, "critic"])
@pytest.mark.parametrize("missing", [False, True])
def test_no_role_runs_ulysses_on_sdpa(defaults, monkeypatch, role, missing):
    config = changed(defaults, f"{REF}.ulysses_sequence_parallel_size=1", f"{role}.{ULYSSES}")
    check_workers(config)
    if missing:
        monkeypatch.setitem(sys.modules, "flash_attn", None)
        checks.fall_back_to_sdpa(config, "accelerator")
    else:
        config = changed(config, f"{role.split('.')[0]}.{SDPA}")
    refuses(config, f"{role}.ulysses_sequence_parallel_size")


@pytest.mark.parametrize("whose", ["the Solver's", "its own"])
def test_nor_does_a_second_policy(defaults, whose):
    """What its overlay does not name, its trainer takes from the Solver's model."""
    config = changed(defaults)
    config.proposer = changed(defaults, f"{ACTOR}.{ULYSSES}", f"{ACTOR}.ppo_mini_batch_size=8")
    check_workers(config)
    tree = config if whose == "the Solver's" else config.proposer
    tree.actor_rollout_ref.model.override_config = {"attn_implementation": "sdpa"}
    refuses(config, f"proposer.{ACTOR}.ulysses_sequence_parallel_size")
    if whose == "the Solver's":
        config.proposer.actor_rollout_ref.model.override_config = {"attn_implementation": "flash_attention_2"}
        check_workers(config)


def test_without_flash_attention_a_run_is_told_of_a_key_that_exists(defaults, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    checks.fall_back_to_sdpa(changed(defaults), "accelerator")
    key = "actor_rollout_ref.model.use_fused_kernels"
    assert f"{key}=true" in capsys.readouterr().err and OmegaConf.select(defaults, key) is False
