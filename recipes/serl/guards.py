"""Refusal, before anything starts, of configurations in which SeRL would run wrong."""

from typing import Any

from omegaconf import DictConfig

from recipes.common.guards import require, require_off
from recipes.common.rows import read_rows
from recipes.common.split_resources import check_resources, is_split
from recipes.errors import ConfigError
from recipes.serl.estimators import NAMES
from recipes.serl.instructions import load_template
from recipes.serl.settings import SerlSettings
from recipes.serl.voting import POLICY_RULES

ESTIMATORS = (*NAMES, "reinforce_plus_plus", "rloo", "grpo")


def check_serl_config(config: DictConfig) -> None:
    """Refuse a composed configuration that SeRL cannot run with.

    Raises:
        ConfigError: one sentence that says what was found and what to set.
        DataError, MissingFileError: the seed file or the few-shot prompt file cannot be used.
    """
    settings = SerlSettings.from_mapping(config.serl)
    _check_trainer(config)
    check_resources(config)
    _check_hook(config, settings)
    _check_estimator(config, settings)
    _check_teacher(config, settings)
    _check_sizes(config, settings)
    if settings.variant == "self_instruct":
        _check_self_instruction(settings)


def _check_trainer(config: DictConfig) -> None:
    why = "SeRL collects and filters its prompts itself"
    require(config, "trainer.v1.trainer_mode", "serl", why=why)
    require(config, "trainer.critic_warmup", 0, why=why)
    require_off(
        config,
        "trainer.v1.sampler.sync_refill_failed_groups",
        "algorithm.filter_groups.enable",
        "critic.enable",
        "reward.reward_model.enable",
        "data.gen_batch_size",
        why=why,
    )


def _check_hook(config: DictConfig, settings: SerlSettings) -> None:
    hook: Any = config.algorithm.get("group_hook")
    if settings.variant != "ground_truth" and hook and hook.get("path"):
        raise ConfigError(
            f"the vote is the group hook of variant={settings.variant}: leave algorithm.group_hook.path null, found "
            f"{hook.path}, or use variant=ground_truth"
        )


def _check_estimator(config: DictConfig, settings: SerlSettings) -> None:
    algorithm, vote = config.algorithm, settings.vote
    require(config, "algorithm.adv_estimator", *ESTIMATORS, why="SeRL has no such estimator")
    if algorithm.adv_estimator == "serl_grpo":
        require_off(config, "algorithm.use_kl_in_reward", why="SeRL's GRPO takes its KL penalty in the loss")
    if algorithm.adv_estimator == "serl_rloo":
        require(config, "algorithm.gamma", 1, why="SeRL's RLOO does not discount")

    if (vote.rule == "restrain") != (algorithm.adv_estimator == "serl_given"):
        raise ConfigError(
            "serl.vote.rule=restrain makes advantages, which algorithm.adv_estimator=serl_given takes as they are: set "
            f"both by estimator=restrain, found {vote.rule} and {algorithm.adv_estimator}"
        )
    if algorithm.adv_estimator == "serl_given":
        require_off(config, "algorithm.use_kl_in_reward", why="RESTRAIN's advantages are no rewards")
        require(config, "serl.variant", "self_instruct", "majority", why="RESTRAIN's advantages come from the vote")
    if vote.rule in POLICY_RULES:
        require(config, "serl.variant", "self_instruct", "majority", why=f"serl.vote.rule={vote.rule} needs the vote")
        require(config, "serl.vote.convention", "default", why="the original's vote reads no answer")
        require_off(
            config, "algorithm.rollout_correction.bypass_mode", why="the entropies come with the actor's log-probs"
        )
    if vote.rule == "self_certainty":
        require_off(config, "actor_rollout_ref.model.use_fused_kernels", why="self-certainty needs the logits")
        require(
            config,
            "actor_rollout_ref.actor.strategy",
            "fsdp2",
            "fsdp",
            why="self-certainty is read in verl's FSDP engine",
        )
    if vote.flip_weights:
        require(config, "serl.variant", "majority", why="labels flip between visits of a prompt, which returns there")
        require(config, "serl.vote.convention", "default", why="the original's vote reads no answer to compare")


def _check_teacher(config: DictConfig, settings: SerlSettings) -> None:
    if not settings.teacher.answers:
        return
    why = "the teacher (serl.teacher.answers) gives the labels of a dataset's questions"
    require(config, "serl.variant", "majority", why=why)
    require(config, "serl.vote.rule", "majority", why=why)
    require(config, "serl.vote.convention", "default", why=why)
    require_off(config, "serl.vote.flip_weights", why="label flips are those of the policy's votes")
    if is_split(config):
        raise ConfigError(
            "the teacher answers in the policy's rollout engines, which have its weights at hand only where they share "
            "the devices that train: set resources=colocated, found split"
        )
    group = config.actor_rollout_ref
    if not (group.actor.use_kl_loss or config.algorithm.use_kl_in_reward):
        raise ConfigError(
            "the teacher (serl.teacher.answers) is the reference model of the KL penalty, and this run has none: set "
            "actor_rollout_ref.actor.use_kl_loss=true, as estimator=grpo does"
        )
    require_off(
        config,
        "actor_rollout_ref.model.lora_rank",
        "actor_rollout_ref.model.lora.rank",
        "actor_rollout_ref.model.lora_adapter_path",
        why="with adapters the reference is the base model, which is no average of the policy",
    )
    for role in ("actor", "ref"):
        require(config, f"actor_rollout_ref.{role}.strategy", "fsdp2", why="the teacher is averaged shard by shard")
    if str(group.ref.fsdp_config.model_dtype) not in ("fp32", "float32"):
        raise ConfigError(
            f"in {group.ref.fsdp_config.model_dtype} the teacher would round its steps of "
            f"{settings.teacher.rate_first:g} and less away: set actor_rollout_ref.ref.fsdp_config.model_dtype=fp32"
        )


def _check_sizes(config: DictConfig, settings: SerlSettings) -> None:
    rollout, actor, data = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor, config.data
    if rollout.n < 2:
        raise ConfigError(f"a vote needs actor_rollout_ref.rollout.n of at least 2, found {rollout.n}")
    trained, rows = settings.trained_of(rollout.n), actor.ppo_mini_batch_size * rollout.n
    if trained == rollout.n and data.train_batch_size % actor.ppo_mini_batch_size:
        raise ConfigError(
            f"data.train_batch_size={data.train_batch_size} must be a multiple of "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={actor.ppo_mini_batch_size}"
        )
    if rows % trained or data.train_batch_size * trained % rows:
        raise ConfigError(
            f"an update takes actor_rollout_ref.actor.ppo_mini_batch_size x rollout.n = {rows} rows: it must be a "
            f"multiple of the {trained} answers of a prompt that train (serl.vote.trained_share), and divide the "
            f"{data.train_batch_size * trained} rows that data.train_batch_size={data.train_batch_size} prompts give"
        )
    for key in ("rollout", "ref"):
        node = config.actor_rollout_ref[key]
        micro = node.log_prob_micro_batch_size_per_gpu
        if not node.log_prob_use_dynamic_bsz and micro and rows % micro:
            raise ConfigError(
                f"actor_rollout_ref.{key}.log_prob_micro_batch_size_per_gpu={micro} must divide the {rows} rows of a "
                "mini-batch (ppo_mini_batch_size x rollout.n), because a round may hold any number of mini-batches"
            )
    instructions = settings.instructions
    needed = instructions.max_prompt_tokens + instructions.max_tokens
    if settings.variant == "self_instruct" and rollout.max_model_len is not None and rollout.max_model_len < needed:
        raise ConfigError(
            f"actor_rollout_ref.rollout.max_model_len={rollout.max_model_len} cannot hold a few-shot prompt and what "
            f"follows it: set it to at least {needed} (serl.instructions.max_prompt_tokens + max_tokens)"
        )


def _check_self_instruction(settings: SerlSettings) -> None:
    instructions = settings.instructions
    seeds = read_rows(str(settings.seeds), settings.question_key)
    if len(seeds) < instructions.few_shot_generation:
        raise ConfigError(
            f"{settings.seeds} holds {len(seeds)} seeds, a few-shot prompt takes "
            f"serl.instructions.few_shot_generation={instructions.few_shot_generation}: add seeds or lower it"
        )
    load_template(instructions.prompt_file)
