"""What this package adds to verl, and how: one table, applied in every process that imports verl.

verl loads the entry points of group ``verl.plugins`` at the end of ``import verl``; it does not call them and hides
what they raise. So importing this module registers, it imports nothing heavy (a row waits until verl itself imports
the registry it goes into), and it cannot raise: what goes wrong is kept in :data:`errors`, where ``python -m
recipes.launch.doctor`` and the gate in :mod:`recipes.launch` find it.

Installing the package changes nothing else about verl. The CPU platform is a registered name that is never detected by
itself, and its patches load only where a launch asked for them through the environment.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import NamedTuple

from recipes.core import own_log

ENTRY_POINT = "verl_duets"


class Row(NamedTuple):
    """One registration: `target` is "module:attribute", imported when the registry of its `kind` is."""

    kind: str
    name: str
    target: str


TABLE: tuple[Row, ...] = (
    Row("platform", "cpu", "recipes.core.cpu:PlatformCPU"),
    Row("reward_manager", "score_skip_fail", "recipes.core.reward_manager:ScoreSkipFailRewardManager"),
    Row("trainer", "grouped", "recipes.core.trainer:DuetTrainer"),
    Row("adv_estimator", "sppo", "recipes.sppo.verl_plugin:compute_sppo_advantage"),
    Row("policy_loss", "sppo", "recipes.sppo.verl_plugin:compute_sppo_policy_loss"),
    Row("trainer", "tandem", "recipes.tandem.trainer:TandemTrainer"),
    Row("agent_loop", "tandem", "recipes.tandem.agent_loop:TandemAgentLoop"),
    Row("agent_loop", "tandem_portable", "recipes.tandem.portable.joint_writer:PortableTandemAgentLoop"),
    Row("rollout_replica", "tandem_vllm", "recipes.tandem.replica:TandemReplica"),
    Row("rollout_adapter", "tandem_vllm", "recipes.tandem.replica:TandemServerAdapter"),
    Row("trainer", "serl", "recipes.serl.trainer:SerlTrainer"),
    Row("adv_estimator", "serl_reinforce_pp", "recipes.serl.verl_plugin:compute_serl_reinforce_pp"),
    Row("adv_estimator", "serl_rloo", "recipes.serl.verl_plugin:compute_serl_rloo"),
    Row("adv_estimator", "serl_grpo", "recipes.serl.verl_plugin:compute_serl_grpo"),
    Row("agent_loop", "serl_raw_prompt", "recipes.serl.generation:RawPromptAgentLoop"),
    Row("trainer", "step_ppo", "recipes.step_ppo.trainer:StepPPOTrainer"),
    Row("reward_manager", "step_ppo", "recipes.step_ppo.reward_manager:StepRewardManager"),
    Row("agent_loop", "step_ppo", "recipes.step_ppo.agent_loop:StepPPOAgentLoop"),
    Row("trainer", "pasodoble_online", "recipes.pasodoble.trainer:OnlineTrainer"),
    Row("trainer", "pasodoble_offline", "recipes.pasodoble.trainer:OfflineTrainer"),
    Row("agent_loop", "pasodoble", "recipes.pasodoble.verl_plugin:OpenThinkingAgentLoop"),
)

errors: dict[Row, str] = {}
_applied: set[Row] = set()


def load(target: str) -> object:
    """The object that "module:attribute" names, imported now."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _dotted_name(target: str) -> type:
    """A stand-in that carries only the dotted name: verl's agent-loop registry stores nothing else of the class."""
    module, _, attribute = target.partition(":")
    return type(attribute, (), {"__module__": module, "__qualname__": attribute})


def dotted_path(target: str) -> str:
    """ "module:attribute" as verl writes it, "module.attribute"."""
    return target.replace(":", ".")


def _register_platform(registry, row: Row) -> None:
    registry.PlatformRegistry.register(platform=row.name)(load(row.target))


def _register_adv_estimator(registry, row: Row) -> None:
    registry.register_adv_est(row.name)(load(row.target))


def _register_policy_loss(registry, row: Row) -> None:
    registry.register_policy_loss(row.name)(load(row.target))


def _register_trainer(registry, row: Row) -> None:
    registry.register_trainer(row.name)(load(row.target))


def _register_reward_manager(registry, row: Row) -> None:
    registry.register(row.name)(load(row.target))


def _register_agent_loop(registry, row: Row) -> None:
    registry.register(row.name)(_dotted_name(row.target))


def _register_rollout_replica(registry, row: Row) -> None:
    registry.RolloutReplicaRegistry.register(row.name, lambda: load(row.target))


def _register_rollout_adapter(registry, row: Row) -> None:
    registry._ROLLOUT_REGISTRY[row.name, "async"] = dotted_path(row.target)


class Kind(NamedTuple):
    """A verl registry: the module whose import makes it ready, and how to add to it."""

    module: str
    register: Callable[[object, Row], None]


KINDS: dict[str, Kind] = {
    "platform": Kind("verl.plugin.platform", _register_platform),
    "adv_estimator": Kind("verl.trainer.ppo.core_algos", _register_adv_estimator),
    "policy_loss": Kind("verl.trainer.ppo.core_algos", _register_policy_loss),
    "trainer": Kind("verl.trainer.ppo.v1", _register_trainer),
    "reward_manager": Kind("verl.experimental.reward_loop.reward_manager", _register_reward_manager),
    "agent_loop": Kind("verl.experimental.agent_loop.agent_loop", _register_agent_loop),
    "rollout_adapter": Kind("verl.workers.rollout.base", _register_rollout_adapter),
    "rollout_replica": Kind("verl.workers.rollout.replica", _register_rollout_replica),
}


def _being_imported(target: str) -> bool:
    """Whether the module of a target is under way: it is then what has made verl import the registry."""
    module, _, attribute = target.partition(":")
    return module in sys.modules and not hasattr(sys.modules[module], attribute)


def _apply(row: Row, registry: object) -> None:
    # A row that cannot be applied yet is so by the next `activate`.
    if row in _applied or _being_imported(row.target):
        return
    try:
        KINDS[row.kind].register(registry, row)
    except Exception:
        errors[row] = traceback.format_exc()
    else:
        errors.pop(row, None)
        _applied.add(row)


def activate(rows: Iterable[Row] = TABLE) -> None:
    """Register each row now if verl has already imported its registry, else when verl does. Repeating it is
    harmless."""
    import wrapt

    for row in rows:
        wrapt.when_imported(KINDS[row.kind].module)(lambda registry, row=row: _apply(row, registry))


def plugin_problem() -> str | None:
    """The reason why the processes of a run would miss the whole table, None when they load it."""
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and ENTRY_POINT not in {name.strip() for name in policy.split(",")}:
        return (
            f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps verl from loading {ENTRY_POINT!r}: unset it or add {ENTRY_POINT}"
        )
    if not entry_points(group="verl.plugins", name=ENTRY_POINT):
        return "this environment has no installed verl-duets for verl to find: run 'pip install -e .' in the repository"
    if own_log.messages:
        return f"the plug-in failed while loading: {own_log.messages[0].strip().splitlines()[-1]}"
    return None


def start() -> None:
    """Activate the table and what the environment of this run asks for; repeating it is harmless, and it never
    raises."""
    try:
        own_log.configure()
        activate()
        if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
            from recipes.core.cpu_patches import install

            install()
        if os.environ.get("VERL_DUETS_SYNC_TIMEOUT"):
            from recipes.core import critic, sync_guard, weight_sync

            weight_sync.install()
            sync_guard.install()
            critic.install()
    except Exception:
        own_log.messages.append(traceback.format_exc())


start()
