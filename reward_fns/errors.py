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


class EndpointError(RewardError, RuntimeError):
    """An endpoint could not be used.

    Attributes:
        reason: a short token for counts: `time_out`, `unreachable`, `junk_reply`, `circuit_open`, `http_429`, ...
        kind: `passing` when another request may succeed, `request` when this one never will and others may, `refused`
            when every request will fail in the same way.
        retry_after: seconds that the endpoint asked to wait.
    """

    def __init__(self, message: str, reason: str, kind: str = "passing", retry_after: float = 0.0):
        super().__init__(message, reason, kind, retry_after)
        self.reason, self.kind, self.retry_after = reason, kind, retry_after

    def __str__(self) -> str:
        return self.args[0]

    @property
    def passing(self) -> bool:
        """Whether another attempt may succeed."""
        return self.kind == "passing"
