"""A log handler of our own, since the root logger's is not reliable in a run.

``model_hosting_container_standards``, which vLLM's server imports, raises the root logger and its handlers to ERROR,
which hides every warning that propagates to the root. verl gives its logger a handler of its own for the same reason,
in the process of the trainer; this does it for ours in every process.
"""

import logging
import os

messages: list[str] = []
"""Tracebacks of errors met while the plug-in loads, kept because verl hides what a plug-in raises."""


LOGGER = "recipes"


def configure() -> None:
    """Let the package's logger print by itself, at ``VERL_LOGGING_LEVEL`` (WARNING where unset); no-op where it has a
    handler or a level already."""
    logger = logging.getLogger(LOGGER)
    if logger.handlers or logger.level != logging.NOTSET:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s:%(asctime)s:%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(os.environ.get("VERL_LOGGING_LEVEL", "WARNING").upper())
    logger.propagate = False
