"""Refusal, before anything starts, of configurations in which step-PPO would run wrong."""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipes.errors import ConfigError
from recipes.step_ppo.settings import StepPPOSettings


def check_step_ppo_config(config: DictConfig) -> None:
    """Refuse a composed configuration that step-PPO cannot run with.

    Raises:
        ConfigError: one sentence that says what was found and what to set.
    """
    block: Any = OmegaConf.to_container(config.step_ppo, resolve=True)
    settings = StepPPOSettings.from_mapping(block)
    rollout = config.actor_rollout_ref.rollout
    wanted = {
        "trainer.v1.trainer_mode": (
            config.trainer.v1.trainer_mode,
            "step_ppo",
            "the trainer has its own advantage stage",
        ),
        "algorithm.adv_estimator": (config.algorithm.adv_estimator, "gae", "step-PPO estimates advantages with GAE"),
        "critic.enable": (config.critic.enable, True, "GAE needs a critic"),
        "reward.reward_manager.name": (config.reward.reward_manager.name, "step_ppo", "it reads the PRM"),
        "actor_rollout_ref.rollout.agent.default_agent_loop": (
            rollout.agent.default_agent_loop,
            "step_ppo",
            "it carries a reward for each token",
        ),
    }
    for key, (found, expected, why) in wanted.items():
        if found != expected:
            shown = "true" if expected is True else expected
            raise ConfigError(f"{key} is {found}; {why}: set {key}={shown}")
    if config.reward.custom_reward_function.path is None:
        raise ConfigError(
            "reward.custom_reward_function.path is null, and verl then bypasses the reward manager: "
            "leave it at pkg://reward_fns.multiple_choice or set another function for the final answer"
        )
    _check_prm(config, settings)
    _check_critic(str(config.critic.model.path))


def _check_prm(config: DictConfig, settings: StepPPOSettings) -> None:
    model = config.reward.reward_model
    if not settings.reward.needs_prm:
        if model.enable:
            raise ConfigError("step_ppo.reward.mode=outcome asks no PRM: set reward.reward_model.enable=false")
        return
    if settings.prm.url:
        if model.enable:
            raise ConfigError("step_ppo.prm.url and reward.reward_model.enable name two PRMs: drop one")
        if not settings.prm.model:
            raise ConfigError(
                "step_ppo.prm.url needs step_ppo.prm.model, the name under which that server knows the PRM"
            )
        return
    if not model.enable:
        raise ConfigError("step rewards need a PRM: set reward.reward_model.enable=true or step_ppo.prm.url")
    if not model.enable_resource_pool:
        raise ConfigError(
            "a colocated reward model sees no gold answer and its rewards come too late for the agent loop: "
            "set reward.reward_model.enable_resource_pool=true with its devices, or step_ppo.prm.url"
        )
    if not model.model_path:
        raise ConfigError("reward.reward_model.model_path is null: set it to the folder of the PRM")
    limit = model.rollout.max_model_len
    longest = config.data.max_prompt_length + config.data.max_response_length
    if limit is not None and limit < longest:
        raise ConfigError(
            f"reward.reward_model.rollout.max_model_len={limit} is less than prompt and response together ({longest})"
        )
    _check_head(str(model.model_path), settings.prm.classes)


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
            f"reward.reward_model.model_path={path} is {names}, not a PRM of recipes.step_ppo.pipeline.prm"
        )
    if not classes or max(classes) >= _num_labels(architecture) or min(classes) < 0:
        raise ConfigError(f"step_ppo.prm.classes={list(classes)} but the PRM has {_num_labels(architecture)} classes")


def _check_critic(path: str) -> None:
    architecture = _architecture(path)
    has_head = any("ForTokenClassification" in name for name in architecture.get("architectures") or [])
    if has_head and _num_labels(architecture) != 1:
        raise ConfigError(
            f"critic.model.path={path} has a head of {_num_labels(architecture)} classes, which verl cannot turn into "
            "values: use the backbone that 'recipes.step_ppo.pipeline.prm --export-backbone' writes"
        )
