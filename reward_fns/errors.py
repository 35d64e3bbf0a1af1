"""The exceptions of this package: one hierarchy, each also a standard-library error, all picklable (they cross Ray)."""


class RewardError(Exception):
    """Base of every exception that this package raises on its own account."""


class OptionError(RewardError, TypeError):
    """An option that no reward function here knows, or a value it cannot take."""


class ResultError(RewardError, ValueError):
    """A Score, Skip or Fail was built or read from something that is none."""


class SkipError(RewardError, RuntimeError):
    """A sample could not be judged and the caller asked for an exception instead of a marked zero."""


class BudgetSpent(RewardError, RuntimeError):
    """More samples were skipped than the budget allows: the run must stop, `str(error)` says why."""


class PoolError(RewardError, RuntimeError):
    """The pool was used wrongly, or was closed."""


class JudgeError(RewardError, RuntimeError):
    """The judge's answer could not be used, or the endpoint could not be asked."""
