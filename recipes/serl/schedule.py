"""When a run ends."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Length of a run counted in trained prompts.

    The original code uses `instructions_num_per_iteration` only for the length of the learning-rate schedule and has to
    be stopped by hand; here a run ends when `iterations` times that many prompts were trained, or after `max_steps`
    trainer steps, so that steps which train fewer prompts, or none, cannot prolong it without limit. Where prompts come
    from a dataset, `available_prompts` (its rows times its epochs) bounds it; `None` where the model writes them.
    """

    instructions_num_per_iteration: int = 2000
    iterations: int = 1
    prompts_per_step: int = 16
    step_slack: float = 1.0
    available_prompts: int | None = None

    @property
    def total_prompts(self) -> int:
        """Prompts to train in all."""
        asked = self.instructions_num_per_iteration * self.iterations
        return asked if self.available_prompts is None else min(asked, self.available_prompts)

    @property
    def full_steps(self) -> int:
        """Trainer steps when each trains `prompts_per_step` prompts: 125 in the original set-up."""
        return math.ceil(self.total_prompts / self.prompts_per_step)

    @property
    def max_steps(self) -> int:
        """The most trainer steps a run may take."""
        return math.ceil(self.full_steps * self.step_slack)

    def prompts_left(self, trained_prompts: int) -> int:
        """Prompts still to train."""
        return max(0, self.total_prompts - trained_prompts)

    def iteration(self, trained_prompts: int) -> int:
        """Number of the current iteration, from 1; the last one when all are done."""
        return min(self.iterations, trained_prompts // self.instructions_num_per_iteration + 1)

    def finished(self, trained_prompts: int, step: int) -> bool:
        """Whether the run ends after `step`: all prompts are trained, or no more steps may be taken."""
        return trained_prompts >= self.total_prompts or step >= self.max_steps
