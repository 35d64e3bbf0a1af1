"""The settings of ``algorithm.reward_faults``: limits on a reward function, and how much of a batch may go unjudged."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from recipes.errors import ConfigError
from reward_fns.result import FailureBudget

BLOCK = "algorithm.reward_faults"


@dataclass(frozen=True)
class RewardFaults:
    """How a reward function is run and what its faults may cost.

    Attributes:
        time_limit: seconds of wall clock one call may take; a slower one is a Score of 0 with reason ``time_out``.
        memory_limit: bytes by which the process of the call may grow; over it, a Score of 0 with reason ``memory``.
        isolate: run the function in a process that can be killed; ``auto`` leaves out the functions of ``reward_fns``,
            which bound themselves, and coroutine functions, which are bounded by ``time_limit`` on the event loop.
        workers: such processes in each reward worker.
        skip_share: share of a batch, in [0, 1], that may be skipped before the run stops.
        min_skips: fewer skips than this never stop a run.
        min_group: responses a prompt must keep when some are skipped; smaller groups are dropped whole, because a
            baseline over one response is that response.
    """

    time_limit: float = 10.0
    memory_limit: int = 2 << 30
    isolate: str = "auto"
    workers: int = 2
    skip_share: float = 0.1
    min_skips: int = 1
    min_group: int = 2

    def __post_init__(self) -> None:
        if self.isolate not in ("auto", "always", "never"):
            raise ConfigError(f"{BLOCK}.isolate must be auto, always or never, found {self.isolate!r}")
        for name in ("time_limit", "memory_limit", "workers", "min_skips", "min_group"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"{BLOCK}.{name} must be greater than 0, found {value!r}")
        if isinstance(self.skip_share, bool) or not 0 <= self.skip_share <= 1:
            raise ConfigError(f"{BLOCK}.skip_share must be in [0, 1], found {self.skip_share!r}")

    @classmethod
    def from_mapping(cls, block: Mapping | None) -> "RewardFaults":
        """Read the block; an absent one gives the defaults.

        Raises:
            ConfigError: an unknown key or a value out of range.
        """
        if block is None:
            return cls()
        known = [field.name for field in fields(cls)]
        unknown = sorted(str(key) for key in block if key not in known)
        if unknown:
            raise ConfigError(f"{BLOCK} has no option {', '.join(unknown)}; the options are {', '.join(known)}")
        return cls(**{str(key): value for key, value in block.items()})

    @property
    def budget(self) -> FailureBudget:
        return FailureBudget(share=float(self.skip_share), min_count=int(self.min_skips))
