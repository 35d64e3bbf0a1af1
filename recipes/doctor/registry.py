"""Compare the rows of the plug-in's table with the live registries of verl in this process."""

import importlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from recipes import plugin
from recipes.plugin import KINDS, TABLE, Row, dotted_path, load
from recipes.upstream.vllm_distribution import vllm_known_by_either_name


class RowState(NamedTuple):
    """What the live registry holds under a row's name."""

    row: Row
    ok: bool
    detail: str


def _find_agent_loop(registry, name: str) -> object:
    return registry._agent_loop_registry.get(name, {}).get("_target_")


def _find_rollout_replica(registry, name: str) -> object:
    loader = registry.RolloutReplicaRegistry._registry.get(name)
    return loader() if loader else None


FIND: dict[str, Callable[[object, str], object]] = {
    "platform": lambda registry, name: registry.PlatformRegistry.get(name),
    "adv_estimator": lambda registry, name: registry.ADV_ESTIMATOR_REGISTRY.get(name),
    "policy_loss": lambda registry, name: registry.POLICY_LOSS_REGISTRY.get(name),
    "trainer": lambda registry, name: registry.trainer_base.TRAINER_REGISTRY.get(name),
    "reward_manager": lambda registry, name: registry.registry.REWARD_MANAGER.get(name),
    "agent_loop": _find_agent_loop,
    "rollout_adapter": lambda registry, name: registry._ROLLOUT_REGISTRY.get((name, "async")),
    "rollout_replica": _find_rollout_replica,
}
# Registries that hold a dotted name and import it at first use.
KEPT_AS_TEXT = ("agent_loop", "rollout_adapter")


def _check_row(row: Row) -> RowState:
    try:
        if reason := plugin.why_verl_does_not_load_us():
            raise RuntimeError(reason)
        with vllm_known_by_either_name():
            registry = importlib.import_module(KINDS[row.kind].module)
            if row in plugin.errors:
                raise RuntimeError(plugin.errors[row].strip().splitlines()[-1])
            found = FIND[row.kind](registry, row.name)
            expected = dotted_path(row.target) if row.kind in KEPT_AS_TEXT else load(row.target)
        if found is None:
            raise LookupError(f"{row.name!r} is not in verl's {row.kind} registry")
        if found != expected:
            raise LookupError(f"{row.name!r} in verl's {row.kind} registry is {found!r}, not {row.target}")
    # A target may raise anything while it is imported; the row is off and says why.
    except Exception as error:
        return RowState(row, False, f"{type(error).__name__}: {error}")
    return RowState(row, True, row.target)


def check(rows: Iterable[Row] = TABLE) -> list[RowState]:
    """Compare rows with the live registries of this process (imports the registries, hence verl)."""
    return [_check_row(row) for row in rows]
