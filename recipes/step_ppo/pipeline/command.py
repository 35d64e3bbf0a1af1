"""How a stage of the pipeline ends: with its exit code, or with one sentence about what it was given."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import recipes
import reward_fns

PACKAGES = tuple(Path(package.__file__).resolve().parent for package in (recipes, reward_fns))


def run(main: Callable[[], int]) -> None:
    """Exit with `main`'s code; a refusal of its input, or a file that cannot be read or written, is one sentence.

    A refusal is a ValueError that this package raises itself; one from a library is a fault and keeps its traceback.
    """
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(f"{_name()}: {error}")
    except ValueError as error:
        innermost = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
        if not any(package in innermost.parents for package in PACKAGES):
            raise
        sys.exit(f"{_name()}: {error}")


def _name() -> str:
    return Path(sys.argv[0]).stem
