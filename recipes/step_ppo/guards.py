"""Refusal, before anything starts, of configurations in which step-PPO would run wrong."""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipes.core.settings import require, require_off
from recipes.errors import ConfigError
from recipes.launch.preflight import check_vocabulary
from recipes.step_ppo.settings import StepPPOSettings


def check_step_ppo_config(config: DictConfig) -> None:
    """Refuse a composed configuration that step-PPO cannot run with.

    Raises:
        ConfigError: one sentence that says what was found and what to set.
    """
    block: Any = OmegaConf.to_container(config.step_ppo, resolve=True)
    settings = StepPPOSettings.from_mapping(block)
    require(config, "trainer.v1.trainer_mode", "step_ppo", why="the trainer has its own advantage stage")
    if settings.reward.centre:
        why = "step_ppo.reward.centre compares the responses to a prompt"
        require(config, "algorithm.adv_estimator", "grpo", why=why)
        require_off(config, "critic.enable", why=why)
        if config.actor_rollout_ref.rollout.n < 2:
            key = "actor_rollout_ref.rollout.n"
            raise ConfigError(f"{key} must be at least 2: {why}", key)
        if settings.reward.mode == "outcome":
            key = "step_ppo.reward.mode"
            raise ConfigError(f"{key}=outcome has no step rewards, which step_ppo.reward.centre centres", key)
    else:
        require(config, "algorithm.adv_estimator", "gae", why="step-PPO estimates advantages with GAE")
        require(config, "critic.enable", True, why="GAE needs a critic")
    require(config, "reward.reward_manager.name", "step_ppo", why="the reward manager reads the PRM")
    why = "the agent loop carries a reward for each token"
    require(config, "actor_rollout_ref.rollout.agent.default_agent_loop", "step_ppo", why=why)
    if config.reward.custom_reward_function.path is None:
        raise ConfigError(
            "reward.custom_reward_function.path is null, and verl then bypasses the reward manager: "
            "leave it at pkg://reward_fns.multiple_choice or set another function for the final answer",
            "reward.custom_reward_function.path",
        )
    _check_prm(config, settings)
    if config.critic.enable:
        _check_critic(str(config.critic.model.path))


def _check_prm(config: DictConfig, settings: StepPPOSettings) -> None:
    model = config.reward.reward_model
    if not settings.reward.needs_prm:
        require_off(config, "reward.reward_model.enable", why="step_ppo.reward asks no PRM")
        return
    if settings.prm.url:
        require_off(config, "reward.reward_model.enable", why="step_ppo.prm.url names another PRM")
        if not settings.prm.model:
            key = "step_ppo.prm.model"
            raise ConfigError(f"step_ppo.prm.url needs {key}, the name under which that server knows the PRM", key)
        return
    require(config, "reward.reward_model.enable", True, why="step rewards need a PRM (or step_ppo.prm.url)")
    why = "a colocated reward model sees no gold answer and its rewards come too late for the agent loop"
    require(config, "reward.reward_model.enable_resource_pool", True, why=why)
    if not model.model_path:
        key = "reward.reward_model.model_path"
        raise ConfigError(f"{key} is null: set it to the folder of the PRM", key)
    limit = model.rollout.max_model_len
    longest = config.data.max_prompt_length + config.data.max_response_length
    if limit is not None and limit < longest:
        raise ConfigError(
            f"reward.reward_model.rollout.max_model_len={limit} is less than prompt and response together ({longest})",
            "reward.reward_model.rollout.max_model_len",
        )
    _check_head(str(model.model_path), settings.prm.classes)
    policy = str(config.actor_rollout_ref.model.path)
    check_vocabulary(str(model.model_path), policy, "reward.reward_model.model_path")


def _architecture(path: str) -> dict:
    file = Path(path) / "config.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _num_labels(architecture: dict) -> int:
    return int(architecture.get("num_labels") or len(architecture.get("id2label") or ()) or 2)


def _check_head(path: str, classes: tuple[int, ...]) -> None:
    architecture = _architecture(path)
    if not architecture:
        return
    names = architecture.get("architectures") or []
    if not any("ForTokenClassification" in name for name in names):
        raise ConfigError(
            f"reward.reward_model.model_path={path} is {names}, not a PRM of recipes.step_ppo.pipeline.prm",
            "reward.reward_model.model_path",
        )
    if max(classes) >= (number := _num_labels(architecture)):
        raise ConfigError(
            f"step_ppo.prm.classes={list(classes)} but the PRM has {number} classes", "step_ppo.prm.classes"
        )


def _check_critic(path: str) -> None:
    architecture = _architecture(path)
    has_head = any("ForTokenClassification" in name for name in architecture.get("architectures") or [])
    if has_head and _num_labels(architecture) != 1:
        raise ConfigError(
            f"critic.model.path={path} has a head of {_num_labels(architecture)} classes, which verl cannot turn into "
            "values: use the backbone that 'recipes.step_ppo.pipeline.prm --export-backbone' writes",
            "critic.model.path",
        )
