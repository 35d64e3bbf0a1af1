"""Refusal, before anything starts, of configurations in which SeRL would run wrong."""

from typing import Any

from omegaconf import DictConfig

from recipes.core.files import read_rows
from recipes.core.settings import require, require_off
from recipes.core.split_resources import check_resources
from recipes.errors import ConfigError
from recipes.launch.preflight import check_rendering, local_tokenizer
from recipes.serl.estimators import NAMES
from recipes.serl.instructions import compose_messages, load_template
from recipes.serl.settings import SerlSettings

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
    _check_estimator(config)
    _check_sizes(config, settings)
    if settings.variant == "self_instruct":
        _check_self_instruction(settings, config.actor_rollout_ref.model.path)


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
            f"{hook.path}, or use variant=ground_truth",
            "algorithm.group_hook.path",
        )


def _check_estimator(config: DictConfig) -> None:
    algorithm = config.algorithm
    require(config, "algorithm.adv_estimator", *ESTIMATORS, why="SeRL has no such estimator")
    if algorithm.adv_estimator == "serl_grpo":
        require_off(config, "algorithm.use_kl_in_reward", why="SeRL's GRPO takes its KL penalty in the loss")
    if algorithm.adv_estimator == "serl_rloo":
        require(config, "algorithm.gamma", 1, why="SeRL's RLOO does not discount")


def _check_sizes(config: DictConfig, settings: SerlSettings) -> None:
    rollout, actor, data = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor, config.data
    if rollout.n < 2:
        key = "actor_rollout_ref.rollout.n"
        raise ConfigError(f"a vote needs {key} of at least 2, found {rollout.n}", key)
    trained, rows = settings.trained_of(rollout.n), actor.ppo_mini_batch_size * rollout.n
    if rows % trained or data.train_batch_size * trained % rows:
        raise ConfigError(
            f"an update takes actor_rollout_ref.actor.ppo_mini_batch_size x rollout.n = {rows} rows: it must be a "
            f"multiple of the {trained} answers of a prompt that train (serl.vote.trained_share), and divide the "
            f"{data.train_batch_size * trained} rows that data.train_batch_size={data.train_batch_size} prompts give",
            "actor_rollout_ref.actor.ppo_mini_batch_size",
        )
    for key in ("rollout", "ref"):
        node = config.actor_rollout_ref[key]
        micro = node.log_prob_micro_batch_size_per_gpu
        if not node.log_prob_use_dynamic_bsz and micro and rows % micro:
            raise ConfigError(
                f"actor_rollout_ref.{key}.log_prob_micro_batch_size_per_gpu={micro} must divide the {rows} rows of a "
                "mini-batch (ppo_mini_batch_size x rollout.n), because a round may hold any number of mini-batches",
                f"actor_rollout_ref.{key}.log_prob_micro_batch_size_per_gpu",
            )
    instructions = settings.instructions
    needed = instructions.max_prompt_tokens + instructions.max_tokens
    if settings.variant == "self_instruct" and rollout.max_model_len is not None and rollout.max_model_len < needed:
        raise ConfigError(
            f"actor_rollout_ref.rollout.max_model_len={rollout.max_model_len} cannot hold a few-shot prompt and what "
            f"follows it: set it to at least {needed} (serl.instructions.max_prompt_tokens + max_tokens)",
            "actor_rollout_ref.rollout.max_model_len",
        )


def _check_self_instruction(settings: SerlSettings, model: str) -> None:
    instructions = settings.instructions
    seeds = read_rows(str(settings.seeds), settings.question_key)
    if len(seeds) < instructions.few_shot_generation:
        raise ConfigError(
            f"{settings.seeds} holds {len(seeds)} seeds, a few-shot prompt takes "
            f"serl.instructions.few_shot_generation={instructions.few_shot_generation}: add seeds or lower it",
            "serl.instructions.few_shot_generation",
        )
    template = load_template(instructions.prompt_file)
    if (tokenizer := local_tokenizer(model)) is not None and tokenizer.chat_template:
        check_rendering(tokenizer, compose_messages(["1 + 1?"], template), "serl.instructions.prompt_file")
