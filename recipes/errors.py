"""What a launch may end with: one hierarchy, each class also a standard-library error, all picklable."""


class LaunchError(Exception):
    """A run that was refused, or that ended, for a reason one sentence can give."""


class ConfigError(LaunchError, ValueError):
    """A key or a value that is unknown, contradictory or out of range."""


class DataError(LaunchError, ValueError):
    """A data file that is empty, malformed or lacks a column."""


class MissingFileError(LaunchError, FileNotFoundError):
    """A path in the config that does not exist."""


class EnvironmentProblem(LaunchError, RuntimeError):
    """An installation or a cluster on which the recipe cannot run."""


class CheckpointError(LaunchError, RuntimeError):
    """A checkpoint folder that cannot be resumed from."""
