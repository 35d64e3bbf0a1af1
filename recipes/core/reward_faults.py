"""The settings of ``algorithm.reward_faults``: limits on a reward function, and how much of a batch may go unjudged.

Apart from the reward manager: the trainer reads them while verl registers it, before reward managers can be.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from recipes.core.settings import Count, Positive, Share
from reward_fns.result import FailureBudget

BLOCK = "algorithm.reward_faults"
OWN_FUNCTIONS = ("pkg://reward_fns.", "pkg://reward_fns/", "pkg://recipes.core.")


@dataclass(frozen=True)
class RewardFaults:
    """How a reward function is run and what its faults may cost.

    Attributes:
        time_limit: seconds of wall clock one call may take; a slower one is a Score of 0 with reason ``time_out``.
        memory_limit: bytes by which the process of the call may grow; over it, a Score of 0 with reason ``memory``.
            What loading the function takes is not counted, and may be `reward_fns.worker_memory.LOADING_FACTOR` times
            as much.
        isolate: run the function in a process that can be killed; ``auto`` leaves out the functions of ``reward_fns``,
            which bound themselves, and coroutine functions, which are bounded by ``time_limit`` on the event loop.
        workers: such processes in each reward worker.
        skip_share: share of a batch, in [0, 1], that may be skipped before the run stops.
        min_skips: fewer skips than this never stop a run.
        min_group: responses a prompt must keep when some are skipped; smaller groups are dropped whole, because a
            baseline over one response is that response.
    """

    time_limit: Positive = 10.0
    memory_limit: Count = 2 << 30
    isolate: Literal["auto", "always", "never"] = "auto"
    workers: Count = 2
    skip_share: Share = 0.1
    min_skips: Count = 1
    min_group: Count = 2

    def isolates(self, path: str | None, function: Callable, reward_model: bool) -> bool:
        """Whether the function of this path runs in a process of its own, beside a reward model that verl serves."""
        if not path or reward_model or self.isolate == "never" or is_coroutine_function(function):
            return False
        return self.isolate == "always" or not path.startswith(OWN_FUNCTIONS)

    @property
    def budget(self) -> FailureBudget:
        """What of a batch may be skipped."""
        return FailureBudget(share=self.skip_share, min_count=self.min_skips)


def is_coroutine_function(function: Callable) -> bool:
    """Whether the function, or what verl wrapped into a partial, is a coroutine function."""
    return inspect.iscoroutinefunction(getattr(function, "func", function))
