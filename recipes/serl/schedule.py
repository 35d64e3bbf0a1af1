"""When a run ends, and its learning rate, which never rises again."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Length of a run counted in trained prompts.

    The original code uses `instructions_num_per_iteration` only for the length of the learning-rate schedule and has to
    be stopped by hand; here a run ends when `iterations` times that many prompts were trained, or after `max_steps`
    trainer steps, so that steps which train fewer prompts, or none, cannot prolong it without limit.
    """

    instructions_num_per_iteration: int = 2000
    iterations: int = 1
    prompts_per_step: int = 16
    responses_per_prompt: int = 16
    sequences_per_update: int = 16
    step_slack: float = 1.0

    def __post_init__(self) -> None:
        counts = {name: value for name, value in vars(self).items() if name != "step_slack"}
        for name, value in counts.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, got {value!r}")
        if self.step_slack < 1.0:
            raise ValueError(f"step_slack must be at least 1, got {self.step_slack}")

    @property
    def total_prompts(self) -> int:
        """Prompts to train in all."""
        return self.instructions_num_per_iteration * self.iterations

    @property
    def full_steps(self) -> int:
        """Trainer steps when each trains `prompts_per_step` prompts: 125 in the original set-up."""
        return math.ceil(self.total_prompts / self.prompts_per_step)

    @property
    def max_steps(self) -> int:
        """The most trainer steps a run may take."""
        return math.ceil(self.full_steps * self.step_slack)

    @property
    def updates(self) -> int:
        """Optimizer updates in all, the length of the learning-rate schedule: 2000 in the original set-up."""
        return math.ceil(self.total_prompts * self.responses_per_prompt / self.sequences_per_update)

    def prompts_left(self, trained_prompts: int) -> int:
        """Prompts still to train."""
        return max(0, self.total_prompts - trained_prompts)

    def iteration(self, trained_prompts: int) -> int:
        """Number of the current iteration, from 1; the last one when all are done."""
        return min(self.iterations, trained_prompts // self.instructions_num_per_iteration + 1)

    def finished(self, trained_prompts: int, step: int) -> str | None:
        """Why the run ends after `step` (`trained_prompts` or `max_steps`), or `None` when it goes on."""
        if trained_prompts >= self.total_prompts:
            return "trained_prompts"
        if step >= self.max_steps:
            return "max_steps"
        return None


def learning_rate_factor(
    update: int, total_updates: int, *, warmup_ratio: float = 0.03, min_ratio: float = 0.1
) -> float:
    """Multiple of the peak learning rate before update number `update` (from 0): warm-up, cosine, then constant.

    Equal to the cosine schedule with minimum of transformers up to `total_updates`; past it that one rises again, this
    one stays at `min_ratio`. The original set-up is 5e-7 falling to 5e-8 with 3 % warm-up.
    """
    if total_updates < 1 or update < 0:
        raise ValueError(f"need total_updates >= 1 and update >= 0, got {total_updates} and {update}")
    warmup = math.ceil(total_updates * warmup_ratio)
    if update < warmup:
        return update / max(1, warmup)
    if update >= total_updates:
        return min_ratio
    progress = (update - warmup) / max(1, total_updates - warmup)
    return min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress))
