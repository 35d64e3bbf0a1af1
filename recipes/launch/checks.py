"""Refusals before Ray starts, each in one sentence: what verl would silently train differently, or fail on late."""

import contextlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from recipes import plugin
from recipes.core import own_log
from recipes.core.settings import Count, Finite, check_value, require, require_off
from recipes.errors import ConfigError, EnvironmentProblem, MissingFileError
from recipes.launch.composition import FREE_FORM, difference, flatten
from recipes.plugin import Row

# Trackers whose package has their name; verl imports it when the models are loaded.
TRACKER_PACKAGES = ("wandb", "mlflow", "swanlab", "tensorboard", "clearml", "trackio")


def check_training_engine(overrides: Sequence[str]) -> None:
    """Refuse verl's other training engines before their keys are compared with those of FSDP."""
    for item in overrides:
        key, _, engine = item.lstrip("+").partition("=")
        if key == "model_engine" and engine.strip("'\"") != "dp":
            raise ConfigError(
                f"model_engine={engine}: these recipes train with verl's FSDP engines only: leave it out, and choose "
                "with actor_rollout_ref.actor.strategy=fsdp2 or fsdp",
                key,
            )


def check_platform(config, device: str) -> None:
    if device != "cpu":
        return
    why, rollout = "a CPU runs nothing else", "actor_rollout_ref.rollout"
    for role in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"):
        require(config, f"{role}.strategy", "fsdp2", why=why)
    require_off(config, f"{rollout}.free_cache_engine", f"{rollout}.enable_sleep_mode", why=why)
    if config.actor_rollout_ref.rollout.name == "sglang":
        raise ConfigError(f"{rollout}.name=sglang does not run on a CPU: leave it out", f"{rollout}.name")


def check_one_turn(config) -> None:
    """Refuse verl's multi-turn rollouts: the recipes' agent loops write one response to a prompt."""
    require_off(config, "actor_rollout_ref.rollout.multi_turn.enable", why="the recipes write one turn")


def disable_reward_model_sleep(config) -> None:
    """Let a reward model in a pool of its own keep its memory.

    verl puts it to sleep at the start and wakes it only where it shares the policy's devices: a run would wait for its
    first reward until every request has timed out.
    """
    served = config.reward.reward_model
    if served.enable and served.enable_resource_pool:
        served.rollout.free_cache_engine = False


# Nodes whose path and name are of a class or function of the user's, which verl imports in a worker.
_USERS_CODE = ("reward.custom_reward_function", "data.custom_cls", "trainer.v1.sampler.custom_sampler")


def check_users_code(config) -> None:
    """Refuse a reward function, a dataset or a sampler that cannot be imported."""
    from omegaconf import OmegaConf, open_dict
    from verl.utils.import_utils import load_extern_object

    function = OmegaConf.select(config, "reward.custom_reward_function")
    if function and function.get("reward_kwargs", {}) is None:
        with open_dict(function):
            function.reward_kwargs = {}  # verl makes a dict of it when the reward workers start
    for node in _USERS_CODE:
        path, name = (OmegaConf.select(config, f"{node}.{key}") for key in ("path", "name"))
        if not path:
            continue
        try:
            load_extern_object(path, name)
        except FileNotFoundError as error:
            raise MissingFileError(f"{node}.path={path} does not exist") from error
        # verl makes a RuntimeError of whatever a file raises, and keeps it as the cause.
        except (ImportError, AttributeError, SyntaxError, TypeError, RuntimeError) as error:
            error = error.__cause__ or error
            raise ConfigError(f"{node}: {name!r} cannot be loaded from {path}: {error}", f"{node}.name") from error


def check_group_stage(config) -> None:
    """The settings of the reward manager, the group hook and the shown responses, before a worker reads them."""
    from verl.utils.import_utils import load_extern_object

    from recipes.core.reward_faults import BLOCK, RewardFaults
    from recipes.core.settings import read

    faults = read(RewardFaults, config.algorithm.get("reward_faults"), BLOCK)
    if config.reward.reward_manager.name == "score_skip_fail":
        _load_within_limits(config.reward, faults)
    key = "algorithm.show_responses_every"
    every = config.algorithm.get("show_responses_every")
    if every is not None and (type(every) is not int or every < 1):
        raise ConfigError(f"{key}: expected a number of steps from 1, or null, found {every!r}", key)
    hook = config.algorithm.get("group_hook") or {}
    if hook.get("path"):
        try:
            load_extern_object(hook.path, hook.get("name"))
        except (ImportError, AttributeError, FileNotFoundError, TypeError) as error:
            raise ConfigError(
                f"algorithm.group_hook: {hook.get('name')!r} of {hook.path} cannot be loaded: {error}",
                "algorithm.group_hook",
            ) from error


def _load_within_limits(reward, faults) -> None:
    """Refuse a reward function that its own process cannot load, under the limits that it has in the run."""
    from verl.utils.import_utils import load_extern_object

    from reward_fns.pool import Kind, Pool

    function = reward.get("custom_reward_function") or {}
    path, name = function.get("path"), function.get("name")
    if not path or not faults.isolates(path, load_extern_object(path, name), reward.reward_model.enable):
        return
    with Pool(1, faults.time_limit, faults.memory_limit, preload=()) as pool:
        ended = pool.run("recipes.core.reward_call:load_problem", path, name)
    reason = ended.value if ended.kind is Kind.DONE else f"{ended.kind}: {ended.detail or 'the limit was reached'}"
    if reason:
        raise ConfigError(
            f"reward.custom_reward_function: the process that is to judge responses with {name!r} of {path} cannot "
            f"load it ({reason}); its limits are algorithm.reward_faults.memory_limit={faults.memory_limit} bytes and "
            f"time_limit={faults.time_limit:g} s",
            "reward.custom_reward_function",
        )


MODELS = ("actor_rollout_ref.model", "critic.model")


def fall_back_to_sdpa(config, device: str, models: Sequence[str] = MODELS) -> None:
    """Set sdpa for these models where verl would take flash-attn by default and it is missing or broken."""
    if device == "cpu":
        return
    import importlib

    from omegaconf import OmegaConf, open_dict

    try:
        importlib.import_module("flash_attn")
    except ImportError as error:
        for key in models:
            node = OmegaConf.select(config, key)
            if OmegaConf.select(node, "override_config.attn_implementation") is None:
                with open_dict(node):
                    node.override_config = {**(node.get("override_config") or {}), "attn_implementation": "sdpa"}
        print(
            f"flash-attn cannot be imported ({error}); attention runs on sdpa, and verl computes log-probs row by row "
            f"over the whole vocabulary, which {models[0]}.use_fused_kernels=true avoids",
            file=sys.stderr,
        )


def check_verl(config, recipe: str) -> None:
    """The upstream symbols the recipe stands on, then verl's own validation, its assertions turned into a sentence."""
    from recipes.core import compat

    compat.require(*compat.files_of(recipe))

    from hydra.errors import HydraException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    auto_set_device(config)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            validate_config(
                config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
            )
    except (AssertionError, TypeError, ValueError, NotImplementedError, ImportError, OSError, HydraException) as error:
        # Hydra names the class that it could not build and keeps the reason as the cause.
        cause = error.__cause__ or error
        # An assertion without a message says what it wants in its own line.
        reason = str(cause) or traceback.extract_tb(cause.__traceback__)[-1].line or type(cause).__name__
        raise ConfigError(f"verl refuses the config: {reason}") from error


def check_engine(device: str) -> None:
    """vLLM has to find this package too: on a CPU its weights could not be synchronised otherwise."""
    if device != "cpu":
        return
    from importlib.metadata import entry_points

    from vllm_patches import guard

    plugins = {point.name: point for point in entry_points(group="vllm.general_plugins")}
    try:
        plugins[plugin.ENTRY_POINT].load()
    except (KeyError, ImportError, AttributeError) as error:
        raise EnvironmentProblem(
            f"vLLM would not find this package ({type(error).__name__}: {error}); "
            "run 'pip install -e .' in the repository"
        ) from error
    if problems := guard.problems("cpu_linear"):
        raise EnvironmentProblem(problems[0])


def check_trl() -> None:
    """A TRL that verl cannot import from would end every worker as it builds its model."""
    from recipes.core import compat

    if problem := compat.trl_problem():
        raise EnvironmentProblem(problem)


def check_loggers(logger: str | Sequence[str] | None) -> None:
    """Refuse a tracker that verl does not have, or whose package is missing: verl finds out when the models are loaded.

    Raises:
        ConfigError, EnvironmentProblem: with the first such name of `logger`, which is `trainer.logger`.
    """
    from verl.utils.tracking import Tracking

    if logger is None:
        raise ConfigError("trainer.logger=null: verl reads a list, as [console]", "trainer.logger")
    for name in [logger] if isinstance(logger, str) else logger:
        if name not in (*Tracking.supported_backend, "tracking"):
            backends = ", ".join(Tracking.supported_backend)
            raise ConfigError(f"trainer.logger names {name!r}, verl has {backends}", "trainer.logger")
        if name in TRACKER_PACKAGES and importlib.util.find_spec(name) is None:
            raise EnvironmentProblem(f"trainer.logger names {name!r}, which is not installed")


def check_wandb(trainer) -> None:
    """Refuse what wandb would refuse when the models are loaded: a project's name, or a missing key.

    Raises:
        ConfigError, EnvironmentProblem: with the name, or with what to set.
    """
    if "wandb" not in ([trainer.logger] if isinstance(trainer.logger, str) else trainer.logger or ()):
        return
    if wrong := set(str(trainer.project_name)) & set("/\\#?%:"):
        raise ConfigError(
            f"trainer.project_name={trainer.project_name}: wandb takes no {' '.join(sorted(wrong))} in it",
            "trainer.project_name",
        )
    netrc = Path.home() / ".netrc"
    offline = os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
    if not offline and not os.environ.get("WANDB_API_KEY") and not (netrc.is_file() and "wandb" in netrc.read_text()):
        raise EnvironmentProblem("wandb has no key: set WANDB_API_KEY, run wandb login, or set WANDB_MODE=offline")


def check_registered(rows: Sequence[Row]) -> None:
    """Refuse to start when a name the run needs is not in verl's live registries.

    Raises:
        EnvironmentProblem: with the first row that is missing and why.
    """
    from recipes.launch.doctor import lost_rows

    for row, problem in lost_rows(rows).items():
        raise EnvironmentProblem(f"verl does not know {row.kind} {row.name!r} of this recipe: {problem}")
    if own_log.messages:
        raise EnvironmentProblem(own_log.messages[0].strip().splitlines()[-1])


# Text in verl's defaults that may be a list, and the list that may be text.
TEXT_OR_LIST = ("train_files", "val_files", "target_modules", "logger")
# What the launcher itself divides by.
COUNTS = (
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "data.train_batch_size",
    *(f"actor_rollout_ref.actor.{name}" for name in ("ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu")),
    *(f"actor_rollout_ref.{role}.log_prob_micro_batch_size_per_gpu" for role in ("rollout", "ref")),
    "actor_rollout_ref.rollout.n",
    *(f"actor_rollout_ref.rollout.{kind}_parallel_size" for kind in ("tensor_model", "data", "pipeline_model")),
)


def check_kinds(config: Any, defaults: Any) -> None:
    """Refuse a value of another kind than verl's default has, and a key of verl's that was taken out.

    verl looks at few of its values: a word for a number ends a worker minutes later, and the word "false" switches on.
    A null, here or in verl's defaults, goes with everything but a block.

    Raises:
        ConfigError: with the first such key.
    """
    ours, theirs = flatten(config), flatten(defaults)
    blocks = {key[:end] for key in ours for end, letter in enumerate(key) if letter == "."}
    for key in sorted(theirs.keys() - ours.keys() - blocks):
        if FREE_FORM.search(key):
            continue
        above = [key[:end] for end, letter in enumerate(key) if letter == "."]
        for block in above:
            if block in ours:
                raise ConfigError(f"{block} must be a block of settings, found {ours[block]!r}", block)
        raise ConfigError(f"{key} was taken out, and verl reads it: leave it in, with null for no value", key)
    check_like(config, defaults, difference(config, defaults))
    for key in COUNTS:
        if (value := OmegaConf.select(config, key)) is not None:
            check_value(Count, value, key)


def check_like(config: Any, defaults: Any, keys: Any, prefix: str = "") -> None:
    """Refuse the first of these keys whose value is of another kind than the default's; the prefix is for messages.

    Raises:
        ConfigError: with the key.
    """
    for key in sorted(keys):
        value, default = _value(config, key), _value(defaults, key)
        if value is None or default is None:
            continue
        leaf = key.rpartition(".")[2]
        if isinstance(default, bool):
            kind: Any = bool
        elif isinstance(default, int | float):
            kind = Finite
        elif leaf in TEXT_OR_LIST:
            kind = str if isinstance(value, str) else list
        elif leaf.endswith("dtype") and isinstance(value, int):
            continue  # verl also takes 16 and 32
        else:
            kind = type(default)
        check_value(kind, value, f"{prefix}{key}")


def _value(config: Any, key: str) -> Any:
    """What a key stands for, interpolations resolved; None where it is not there or has no value yet."""
    value = OmegaConf.select(config, key, throw_on_missing=False)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
