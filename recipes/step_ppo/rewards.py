"""Turn the PRM values of a rollout into a reward on the last token of each step.

Source: LPR code, lora_share_trainer/utils/post_process.py (`react_process_reward`, `_eos`, `_eos_w_label`). There
the reward of token t is shifted to the action t - 1 that produced it; verl's `rm_scores[t]` already belongs to the
action that produced token t.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Literal

from recipes.core.settings import Finite, Positive

Mode = Literal["sum", "mean", "difference", "min", "product", "outcome"]
LastStep = Literal["step_end", "eos", "outcome"]


@dataclass(frozen=True)
class StepRewardConfig:
    """How step values become rewards.

    mode: reward at step j, with p_j the PRM value there (times `scale`):
        `sum`         p_j, so the return is the sum of the probabilities (the LPR code's "none")
        `mean`        p_j / number of steps
        `difference`  p_j - p_{j-1} with p_0 = 0; the return is the last value, so more steps earn nothing by themselves
        `min`         smallest value so far
        `product`     product of the values so far
        `outcome`     no PRM: only `outcome_weight` times the gold-answer value, on the EOS token
    last_step: what the last step earns and where:
        `step_end`    as the others
        `eos`         the PRM value read at the EOS token, placed there (config v2_5 of the LPR code)
        `outcome`     the gold-answer value times `outcome_weight` instead of the PRM's, placed on EOS (config v3_0)
      Without an EOS token both stay at the step's end.
    scale: factor on PRM values (0.5 in v3_0). clip: largest absolute reward of one token (5.0 in the LPR code).
    centre: PROGRS (arXiv 2604.02341): a response earns its outcome on EOS, and the sum of its step rewards goes to
        `centred`; for an estimator that compares the responses to a prompt, without a critic
    values: where the steps' values come from: the `prm`, or the `step_scores` that the reward `function` returns beside
        its `score`, one for each step
    """

    mode: Mode = "sum"
    last_step: LastStep = "step_end"
    scale: Finite = 1.0
    outcome_weight: Finite = 1.0
    clip: Positive = 5.0
    values: Literal["prm", "function"] = "prm"
    centre: bool = False

    @property
    def needs_outcome(self) -> bool:
        """Whether the gold answer enters the reward."""
        return self.mode == "outcome" or self.last_step == "outcome" or self.centre

    @property
    def needs_prm(self) -> bool:
        """Whether the PRM is asked at all."""
        return self.mode != "outcome" and self.values == "prm"


def token_rewards(
    values: Sequence[float] | None,
    step_ends: Sequence[int],
    length: int,
    config: StepRewardConfig,
    *,
    eos_index: int | None = None,
    outcome: float | None = None,
) -> list[float]:
    """Compute the reward of every response token.

    Args:
        values: (T,) PRM value, in [0, 1], at each response token; None in mode `outcome`.
        step_ends: ascending token positions of the step ends, at least one unless mode is `outcome`.
        length: number of response tokens T.
        eos_index: position of the EOS token, None when the response has none.
        outcome: value of the final answer against the gold one, when the config needs it.

    Returns:
        (T,) rewards, 0 away from step ends and EOS.

    Raises:
        ValueError: missing outcome, no step, or positions outside the response.
    """
    if config.needs_outcome and outcome is None:
        raise ValueError(f"mode {config.mode!r} with last_step {config.last_step!r} needs the outcome of the response")
    rewards = [0.0] * length
    if config.mode == "outcome":
        if length:
            place = length - 1 if eos_index is None else eos_index
            rewards[place] = _clipped(config.outcome_weight * (outcome or 0.0), config.clip)
        return rewards
    if not step_ends:
        raise ValueError("a response without a step has no step reward")
    if values is None or len(values) != length:
        raise ValueError(
            f"expected one PRM value for each of {length} tokens, found {'none' if values is None else len(values)}"
        )
    places = list(step_ends)
    if not all(a < b for a, b in zip([-1, *places], [*places, length], strict=True)):
        raise ValueError(f"step ends {places} must ascend strictly within 0..{length - 1}")
    places = reward_places(places, config, eos_index=eos_index)
    step_values = [config.scale * values[place] for place in places]
    if config.last_step == "outcome":
        step_values[-1] = config.outcome_weight * (outcome or 0.0)
    for place, reward in zip(places, step_rewards(step_values, config.mode), strict=True):
        rewards[place] = _clipped(reward, config.clip)
    return rewards


def centred(rewards: Sequence[float], right: Sequence[bool], process: Sequence[float]) -> list[float]:
    """The rewards of the responses to one prompt, with what their steps earned.

    From a wrong response's `process` the mean over the wrong ones is taken, so that wrong responses get nothing on
    average however well they are written, and are still told from each other. A right one's is added as it is.

    Args:
        rewards: of the outcome. right: whether the final answer is. process: sums of the step rewards.
    """
    wrong = [value for value, is_right in zip(process, right, strict=True) if not is_right]
    middle = fmean(wrong) if wrong else 0.0
    return [
        reward + value - (0.0 if is_right else middle)
        for reward, is_right, value in zip(rewards, right, process, strict=True)
    ]


def reward_places(step_ends: Sequence[int], config: StepRewardConfig, *, eos_index: int | None = None) -> list[int]:
    """List the tokens on which the steps' rewards stand: their ends, but EOS for a last step that is paid there."""
    places = list(step_ends)
    if places and config.last_step != "step_end" and eos_index is not None:
        places[-1] = eos_index
    return places


def step_rewards(step_values: Sequence[float], mode: Mode) -> list[float]:
    """Compute the reward of each step from the value of each step; see `StepRewardConfig.mode`."""
    match mode:
        case "sum":
            return list(step_values)
        case "mean":
            return [value / len(step_values) for value in step_values]
        case "difference":
            return [value - previous for previous, value in zip([0.0, *step_values], step_values, strict=False)]
        case "min":
            return list(accumulate(step_values, min))
        case "product":
            return list(accumulate(step_values, lambda a, b: a * b))
    raise ValueError(f"mode {mode!r} has no step rewards")


def _clipped(reward: float, clip: float) -> float:
    return max(-clip, min(clip, float(reward)))
