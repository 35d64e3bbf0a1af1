"""Refuse, before anything starts, configurations with which SPPO would compute something else."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipes.core.settings import read, require, require_off
from recipes.errors import ConfigError
from recipes.sppo.settings import AGGREGATIONS, SECTION, SppoSettings

RENAMED = {
    "actor_rollout_ref.actor.sppo_eta": "algorithm.sppo.eta",
    "actor_rollout_ref.actor.extra.sppo_eta": "algorithm.sppo.eta",
    "algorithm.sppo_eta": "algorithm.sppo.eta",
}
ITERATION_OPTIMIZER = "recipes.sppo.iteration_optimizer"
# Adam and gradient clipping rescale what a larger eta scales; the original's 1,000 belongs to its own optimiser.
LARGEST_STEPWISE_ETA = 100.0
MOST_UPDATES_WITHOUT_A_SCHEDULE = 32
ASYNCHRONOUS = ("colocate_async", "separate_async")


def check_sppo_config(config: DictConfig) -> None:
    """Refuse a composed configuration that SPPO cannot run with.

    A configuration that selects neither the estimator nor the loss (the GRPO baseline, preset=grpo) is left alone.

    Raises:
        ConfigError: one sentence that says what was found and what to set.
    """
    for old, new in RENAMED.items():
        if OmegaConf.select(config, old) is not None:
            raise ConfigError(f"{old} belongs to verl's former SPPO recipe; set {new} instead.", new)
    estimator = config.algorithm.adv_estimator
    loss_mode = config.actor_rollout_ref.actor.policy_loss.loss_mode
    if estimator != "sppo" and loss_mode != "sppo":
        return
    if estimator != "sppo" or loss_mode != "sppo":
        raise ConfigError(
            "algorithm.adv_estimator=sppo and actor_rollout_ref.actor.policy_loss.loss_mode=sppo go together, "
            f"found adv_estimator={estimator} and loss_mode={loss_mode}; set both.",
            "algorithm.adv_estimator" if loss_mode == "sppo" else "actor_rollout_ref.actor.policy_loss.loss_mode",
        )
    settings = read(SppoSettings, config.algorithm.get("sppo"), SECTION)
    _check_reference_policy(config)
    _check_loss_terms(config)
    _check_sampling(config, settings)
    _check_iterations(config, settings)
    _check_dropout(config.actor_rollout_ref.model)


def _check_reference_policy(config: DictConfig) -> None:
    require_off(
        config,
        "algorithm.rollout_correction.bypass_mode",
        "actor_rollout_ref.actor.use_rollout_log_probs",
        why="the mismatch of the rollout engine's log-probs, summed over a response, is as large as SPPO's target",
    )
    require_off(
        config,
        "algorithm.rollout_correction.rollout_is",
        "algorithm.rollout_correction.rollout_rs",
        why="SPPO's sum over the response does not allow to reweight or reject tokens",
    )
    require(config, "trainer.use_v1", True, why="SPPO does not run on verl's legacy trainer")
    mode = config.trainer.v1.trainer_mode
    if mode in ASYNCHRONOUS:
        raise ConfigError(
            f"trainer.v1.trainer_mode={mode} trains on responses of earlier policies, while SPPO's reference is the "
            "policy that generated the batch; set it to sync.",
            "trainer.v1.trainer_mode",
        )


def _check_loss_terms(config: DictConfig) -> None:
    require_off(config, "critic.enable", why="SPPO never reads a critic")
    require_off(
        config,
        "algorithm.use_kl_in_reward",
        "actor_rollout_ref.actor.use_kl_loss",
        why="SPPO's square already holds the policy to the one that generated the batch",
    )
    require(
        config,
        "actor_rollout_ref.actor.loss_agg_mode",
        *AGGREGATIONS,
        why="SPPO sums tokens and averages responses",
    )
    require(config, "actor_rollout_ref.actor.loss_scale_factor", None, why="it has no effect on SPPO's loss")


def _check_sampling(config: DictConfig, settings: SppoSettings) -> None:
    rollout = config.actor_rollout_ref.rollout
    responses = rollout.n
    if settings.scope == "prompt" and responses < 2:
        raise ConfigError(
            "algorithm.sppo.scope=prompt compares responses to one prompt; set actor_rollout_ref.rollout.n to at least "
            f"2, found {responses}.",
            "actor_rollout_ref.rollout.n",
        )
    if config.data.train_batch_size * responses < 2:
        key = "data.train_batch_size"
        raise ConfigError(f"a batch of one response is its own baseline; set {key} to at least 2.", key)
    if settings.pairs == "best_worst":
        why = "without log-probs verl does not pass on the rows that algorithm.sppo.pairs=best_worst leaves out"
        require(config, "actor_rollout_ref.rollout.calculate_log_probs", True, why=why)
    if not rollout.do_sample or rollout.temperature <= 0:
        raise ConfigError(
            "SPPO regresses on samples of the policy; set actor_rollout_ref.rollout.do_sample=true and a temperature "
            f"above 0, found do_sample={rollout.do_sample} and temperature={rollout.temperature}.",
            f"actor_rollout_ref.rollout.{'temperature' if rollout.do_sample else 'do_sample'}",
        )
    if settings.score == "winrate":
        why = "algorithm.sppo.score=winrate estimates win rates against the policy itself"
        require(config, "actor_rollout_ref.rollout.temperature", 1, why=why)


def _check_iterations(config: DictConfig, settings: SppoSettings) -> None:
    actor = config.actor_rollout_ref.actor
    optim, updates = actor.optim, updates_per_step(config)
    warmup = optim.lr_warmup_steps > 0 or optim.lr_warmup_steps_ratio > 0
    if optim.get("optimizer_impl") == ITERATION_OPTIMIZER:
        configured = (optim.override_optimizer_config or {}).get("updates_per_iteration")
        if configured != updates:
            raise ConfigError(
                f"A step has {updates} optimiser updates; set actor_rollout_ref.actor.optim.override_optimizer_config."
                f"updates_per_iteration to that, found {configured}.",
                "actor_rollout_ref.actor.optim.override_optimizer_config.updates_per_iteration",
            )
        if warmup or optim.lr_scheduler_type != "constant":
            raise ConfigError(
                "IterationRMSprop has a schedule of its own within each iteration; set actor_rollout_ref.actor.optim."
                "lr_scheduler_type=constant, lr_warmup_steps=0 and lr_warmup_steps_ratio=0.",
                f"actor_rollout_ref.actor.optim.{'lr_warmup_steps' if warmup else 'lr_scheduler_type'}",
            )
        return
    if settings.eta > LARGEST_STEPWISE_ETA:
        raise ConfigError(
            f"algorithm.sppo.eta={settings.eta:g} belongs to the original's iterations, each with an optimiser of its "
            f"own; take preset=iterative, or set eta to at most {LARGEST_STEPWISE_ETA:g}.",
            "algorithm.sppo.eta",
        )
    if updates > MOST_UPDATES_WITHOUT_A_SCHEDULE and warmup:
        raise ConfigError(
            f"A step has {updates} optimiser updates and verl's warm-up moves once per step, so that all updates of "
            "the first would have a learning rate of 0; take preset=iterative, or set actor_rollout_ref.actor.optim."
            "lr_warmup_steps=0 and lr_warmup_steps_ratio=0.",
            "actor_rollout_ref.actor.optim.lr_warmup_steps",
        )


def updates_per_step(config: DictConfig) -> int:
    """Count the optimiser updates in one training step of verl."""
    actor = config.actor_rollout_ref.actor
    return math.ceil(config.data.train_batch_size / actor.ppo_mini_batch_size) * actor.ppo_epochs


def _check_dropout(model: DictConfig) -> None:
    override = model.get("override_config") or {}
    # verl reads the block model_config alone where there is one, and the flat keys where there is none
    override = override.get("model_config", override)
    rates = dict(_dropouts(_model_settings(model))) | dict(_dropouts(override))
    keys = {name: f"+actor_rollout_ref.model.override_config.{name}" for name in rates}
    if model.lora.rank > 0:
        rates["lora.dropout"] = model.lora.dropout
        keys["lora.dropout"] = "actor_rollout_ref.model.lora.dropout"
    for name, rate in rates.items():
        if rate:
            raise ConfigError(
                f"The model has {name}={rate}, which makes SPPO's log-ratio noise of the order of its target; set "
                f"{keys[name]}=0.",
                keys[name].removeprefix("+"),
            )


def _dropouts(settings: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in settings.items():
        if ("dropout" in name or "pdrop" in name) and isinstance(value, int | float):
            yield name, value


def _model_settings(model: DictConfig) -> Mapping[str, Any]:
    path = Path(str(model.get("hf_config_path") or model.path)).expanduser() / "config.json"
    # a hub name is resolved by the workers; only a local folder can be read here
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"{path} is not a readable model configuration: {error}.", "actor_rollout_ref.model.path"
        ) from error
    return settings if isinstance(settings, dict) else {}
