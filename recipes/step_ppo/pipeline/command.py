"""How a stage of the pipeline begins and ends: its options, its exit code, one sentence about faulty input."""

import argparse
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import recipes
import reward_fns
from recipes.core import nvidia
from recipes.errors import EnvironmentProblem
from reward_fns.errors import BudgetSpent, EndpointError, OptionError


def own_device() -> str:
    """Where a stage runs a model: torch's name of the accelerator here, `cpu` where none is or it is hidden.

    Raises:
        EnvironmentProblem: there is a GPU that torch cannot use; the processor takes its place only when asked for.
    """
    import torch

    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator())
    if problem := nvidia.unusable():
        raise EnvironmentProblem(f"{problem}; mend that, or set CUDA_VISIBLE_DEVICES= to run on the processor")
    return "cpu"


PACKAGES = tuple(Path(package.__file__).resolve().parent for package in (recipes, reward_fns))


def parser(docstring: str) -> argparse.ArgumentParser:
    """Make the parser of a stage from its module's docstring, whose first line is "`COMMAND`: what it does"."""
    prog, _, description = docstring.partition("`: ")
    return argparse.ArgumentParser(prog=prog.removeprefix("`"), description=description)


def run(main: Callable[[], int]) -> None:
    """Exit with `main`'s code, or with one sentence for faulty input, an unreadable file or a failing endpoint.

    Faulty input is a ValueError that this package raises itself; one from a library is a bug and keeps its traceback.
    """
    name = Path(sys.argv[0]).stem
    try:
        sys.exit(main())
    except (OSError, BudgetSpent, EndpointError, EnvironmentProblem, OptionError) as error:
        sys.exit(f"{name}: {error}")
    except ValueError as error:
        innermost = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
        if not any(package in innermost.parents for package in PACKAGES):
            raise
        sys.exit(f"{name}: {error}")
