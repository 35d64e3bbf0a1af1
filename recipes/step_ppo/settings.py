"""The settings of the `step_ppo` config block: names, ranges, defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from recipes.core.settings import Count, NonNegative, Positive, read
from recipes.errors import ConfigError
from recipes.step_ppo.rewards import StepRewardConfig


@dataclass(frozen=True)
class PRMSettings:
    """The process reward model.

    Attributes:
        url: root of a vLLM server of the PRM; null for the reward model that verl serves on its own pool.
        model: name the server knows; null for `reward.reward_model.model_path`.
        classes: distinct values counted as good; their probabilities are added.
        timeout: seconds for one attempt. attempts: how often a request is sent at most. max_wait: longest pause (s).
    """

    url: str | None = None
    model: str | None = None
    classes: tuple[int, ...] = (2, 3)
    timeout: Positive = 60.0
    attempts: Count = 4
    max_wait: NonNegative = 10.0

    def __post_init__(self) -> None:
        if not self.classes or len(set(self.classes)) < len(self.classes) or min(self.classes) < 0:
            key = "step_ppo.prm.classes"
            raise ConfigError(f"{key} must be distinct values from 0 on, at least one, found {list(self.classes)}", key)


@dataclass(frozen=True)
class StepPPOSettings:
    """The whole block.

    Attributes:
        reward: how PRM values become token rewards.
        prm: which PRM, with timeouts and retry limits.
        step_style: `react`, or `lines` for maths.
        score_truncated: give step rewards to responses cut by the length limit, as the LPR code does.
        whiten_advantages: whiten them, as verl's own GAE does.
    """

    reward: StepRewardConfig = field(default_factory=StepRewardConfig)
    prm: PRMSettings = field(default_factory=PRMSettings)
    step_style: Literal["react", "lines"] = "react"
    score_truncated: bool = False
    whiten_advantages: bool = False

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any]) -> "StepPPOSettings":
        """Read the block.

        Raises:
            ConfigError: an unknown key or a value out of range, in one sentence.
        """
        return read(cls, block, "step_ppo")
