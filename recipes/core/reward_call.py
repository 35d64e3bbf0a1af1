"""Call a user's reward function; this runs in a process that can be killed, and so imports nothing heavy."""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping

from reward_fns import worker_memory
from reward_fns.result import STEP_SCORES, Score, Skip, normalise, to_verl

PACKAGE_PREFIX = "pkg://"
FILE_PREFIX = "file://"


@functools.cache
def load_function(path: str, name: str) -> Callable:
    """The function ``name`` of ``pkg://module`` or of a Python file, as verl would load it.

    Raises:
        ImportError, AttributeError, FileNotFoundError: it is not there.
    """
    if path.startswith(PACKAGE_PREFIX):
        return getattr(importlib.import_module(path.removeprefix(PACKAGE_PREFIX).replace("/", ".")), name)
    file = path.removeprefix(FILE_PREFIX)
    spec = importlib.util.spec_from_file_location("verl_duets_user_reward", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@functools.cache
def _prepared(path: str, name: str) -> Callable:
    """The function, loaded under the limits of this process, which count from then on what its calls take."""
    with worker_memory.loading():
        return load_function(path, name)


def load_problem(path: str, name: str) -> str | None:
    """Why the function cannot be loaded under the limits of this process, None where it can."""
    loaded = _prepared_or_skip(path, name)
    return loaded.reason if isinstance(loaded, Skip) else None


def _prepared_or_skip(path: str, name: str) -> Callable | Skip:
    try:
        return _prepared(path, name)
    # Of MemoryError too no response is to blame.
    except Exception as error:
        fault, room = raised(error), worker_memory.room_to_load()
        if not room:
            return fault
        return Skip(
            f"{fault.reason}; this came as the function was loaded, for which algorithm.reward_faults.memory_limit "
            f"leaves {room / 2**30:.3g} GiB of address space"
        )


def call(path: str, name: str, arguments: Mapping) -> dict:
    """Run the function; its verdict under the fixed keys, and what it says of steps. What it raises is a Skip that
    names the exception."""
    function = _prepared_or_skip(path, name)
    if isinstance(function, Skip):
        return to_verl(function)
    try:
        result = normalise(function(**arguments))
        return {**to_verl(result), STEP_SCORES: result.step_scores if isinstance(result, Score) else None}
    except MemoryError:
        # The pool tells this limit, which the response ran into, from what the function raised by itself.
        raise
    except Exception as error:
        return to_verl(raised(error))


def raised(error: BaseException) -> Skip:
    """A reward function that raises judged nothing: a Skip with the exception's name, its message after a colon."""
    return Skip(f"raised_{type(error).__name__}: {' '.join(str(error).split())}")
