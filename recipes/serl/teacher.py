"""Co-rewarding-II's teacher: an exponential moving average of the policy, whose majority answer is the label.

Source: Co-rewarding (arXiv 2508.00410), `Co-rewarding-II/verl/workers`; see specs/extensions, section 2. The teacher is
the reference policy of the KL penalty: after each step reference <- (1 - a) reference + a policy, with a rate a that
falls along a cosine.
"""

import math
from dataclasses import dataclass

from recipes.common.settings import CountOrZero, PositiveShare, Share
from recipes.errors import ConfigError


@dataclass(frozen=True)
class TeacherSettings:
    """The moving average, and how many of its answers vote.

    Attributes:
        answers: answers of the teacher to each prompt, of which the most frequent is the label; 0: the policy's own
            answers vote.
        rate_first: share of the policy that the teacher takes in before the first step of the schedule.
        rate_last: the same at its end. The authors' script has 1e-5, their text 1e-4, their formula 0.
    """

    answers: CountOrZero = 0
    rate_first: PositiveShare = 0.01
    rate_last: Share = 1e-5

    def __post_init__(self) -> None:
        if self.answers == 1:
            raise ConfigError("a vote of the teacher needs serl.teacher.answers of at least 2 (0: none), found 1")
        if self.rate_last > self.rate_first:
            raise ConfigError(
                f"the teacher slows down: set serl.teacher.rate_last of at most serl.teacher.rate_first="
                f"{self.rate_first:g}, found {self.rate_last:g}"
            )


def moving_rate(step: int, steps: int, *, first: float, last: float) -> float:
    """The share of the policy that the teacher takes in at `step` of a run of `steps`: a cosine from `first` to `last`.

    Raises:
        ValueError: a run without steps, or a step before the first one.
    """
    if steps < 1 or step < 0:
        raise ValueError(f"expected a step from 0 on of a run of at least 1, found step {step} of {steps}")
    return last + (first - last) * (1 + math.cos(math.pi * min(step, steps) / steps)) / 2
