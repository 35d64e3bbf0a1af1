"""Errors of the package: one hierarchy, each class also a standard-library error, all picklable.

The launcher turns a `LaunchError` into one sentence; a `RunError` ends a running job.
"""


class RecipeError(Exception):
    """Anything that these recipes raise by themselves."""


class LaunchError(RecipeError):
    """A run that was refused, or that ended, for a reason one sentence can give."""


class ConfigError(LaunchError, ValueError):
    """A key or a value that is unknown, contradictory or out of range.

    Attributes:
        key: dotted name of what has to be changed, empty where no single key is to blame.
    """

    def __init__(self, message: str = "", key: str = "") -> None:
        super().__init__(message)
        self.key = key


class DataError(LaunchError, ValueError):
    """A data file that is empty, malformed or lacks a column."""


class JournalError(DataError):
    """A journal that cannot be continued: other settings, damage, a repeated key, or another process writing it."""


class MissingFileError(LaunchError, FileNotFoundError):
    """A path in the config that does not exist."""


class EnvironmentProblem(LaunchError, RuntimeError):
    """An installation or a cluster on which the recipe cannot run."""


class UnknownUpstreamError(EnvironmentProblem):
    """The installed upstream is not one this project was written for."""


class CheckpointError(LaunchError, RuntimeError):
    """A checkpoint folder that cannot be resumed from."""


class StateError(CheckpointError):
    """A recipe's state beside a checkpoint that is missing, damaged, or belongs to another run."""


class RunError(RecipeError, RuntimeError):
    """A running job that cannot go on."""


class StaleRollout(RunError):
    """Responses come from other weights than those that the step trains."""


class WeightTransferError(RunError):
    """Weights did not get from the actor to every rollout worker."""


class WeightSyncTimeout(RecipeError, TimeoutError):
    """A rollout engine did not take the new weights in time."""
