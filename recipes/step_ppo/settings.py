"""The settings of the `step_ppo` config block: names, ranges, defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, get_type_hints

from recipes.errors import ConfigError
from recipes.step_ppo.length_alarm import LengthAlarmSettings
from recipes.step_ppo.step_rewards import StepRewardConfig
from reward_fns.result import FailureBudget


@dataclass(frozen=True)
class PRMSettings:
    """The process reward model.

    Attributes:
        url: root of a vLLM server of the PRM; null for the reward model that verl serves on its own pool.
        model: name the server knows; null for `reward.reward_model.model_path`.
        classes: values counted as good; their probabilities are added.
        timeout: seconds for one attempt. attempts: how often a request is sent at most. max_wait: longest pause (s).
    """

    url: str | None = None
    model: str | None = None
    classes: tuple[int, ...] = (2, 3)
    timeout: float = 60.0
    attempts: int = 4
    max_wait: float = 10.0


@dataclass(frozen=True)
class StepPPOSettings:
    """The whole block.

    Attributes:
        reward: how PRM values become token rewards.
        prm: which PRM, and how patiently it is asked.
        step_style: `react`, or `lines` for maths.
        score_truncated: give step rewards to responses cut by the length limit, as the LPR code does.
        whiten_advantages: whiten them, as verl's own GAE does.
        failure_budget: share of a batch that may be skipped because the PRM or a gold answer failed.
        length_alarm: when growing responses raise the alarm.
    """

    reward: StepRewardConfig = field(default_factory=StepRewardConfig)
    prm: PRMSettings = field(default_factory=PRMSettings)
    step_style: str = "react"
    score_truncated: bool = False
    whiten_advantages: bool = False
    failure_budget: FailureBudget = field(default_factory=lambda: FailureBudget(min_count=2))
    length_alarm: LengthAlarmSettings = field(default_factory=LengthAlarmSettings)

    def __post_init__(self):
        if self.step_style not in ("react", "lines"):
            raise ValueError(f"step_style must be react or lines, found {self.step_style!r}")
        if self.failure_budget.share >= 1:
            raise ValueError("failure_budget.share must be below 1: a step needs samples to train on")

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any]) -> "StepPPOSettings":
        """Read the block.

        Raises:
            ConfigError: an unknown key or a value out of range, in one sentence.
        """
        return _read(cls, block, "step_ppo")


def _read(cls: type, block: Mapping[str, Any], path: str) -> Any:
    if not isinstance(block, Mapping):
        raise ConfigError(f"{path} must be a block of settings, found {block!r}")
    names = {f.name for f in fields(cls)}
    if unknown := sorted(set(block) - names):
        raise ConfigError(f"unknown key {path}.{unknown[0]}; known: {', '.join(sorted(names))}")
    kinds = get_type_hints(cls)
    values = {}
    for name, value in block.items():
        if is_dataclass(kinds[name]):
            values[name] = _read(kinds[name], value, f"{path}.{name}")
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
