"""Change one spot of a module at a time and run its tests: a change that no test notices is a gap in the tests.

    python tests/mutation/mutate.py                         # every module of targets.py
    python tests/mutation/mutate.py recipes/sppo/loss.py    # one of them

writes a line for each mutant to `outputs/mutation/`, the counts and the survivors to `results.json` beside this file,
and prints the survivors that `argued.json` has no reason for; with any, the exit code is 1. `page.py` makes the page.

The tests are collected once. A mutant of a function then costs a fork, in which the function gets the other code and
defaults and the tests run until one fails: the quickest first, property tests with few examples, and with more at the
end. A mutant of anything else, such as a constant or a field's default, is imported anew by a pytest of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

from mutants import Mutant, mutants  # noqa: E402
from targets import TARGETS, Target  # noqa: E402

OUTPUT = ROOT / "outputs" / "mutation"
RESULTS, ARGUED = HERE / "results.json", HERE / "argued.json"
FEW_EXAMPLES, MANY_EXAMPLES = 10, 40
MEMORY = 4 << 30
"""Bytes a mutant may take beyond what this process has."""
PROCESSOR_SECONDS, SECONDS = 10, 600
"""Most that a mutant may take: of processor time beyond ten times what the unchanged module takes, and in all."""
BROKEN = 99
"""Exit code of a forked process that raised an exception."""

Outcome = Literal["passed", "failed", "timeout"]


class _MutatedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, path: str, source: str):
        self._name, self._path, self._source = dotted(path), ROOT / path, source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == self._name:
            return importlib.util.spec_from_file_location(name, self._path, loader=self)
        return None

    def exec_module(self, module: Any) -> None:
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)


def dotted(path: str) -> str:
    """The name under which the module of a file is imported."""
    return path.removesuffix(".py").replace("/", ".")


def forked(action: Callable[[], int], processor_seconds: float) -> Outcome:
    """How ``action`` ends in a forked process; any code but 0 is a failure.

    Raises:
        RuntimeError: it raised an exception, which tests do not.
    """
    child = os.fork()
    if child == 0:
        code = BROKEN
        with contextlib.suppress(BaseException):
            os.setsid()
            _limit(processor_seconds)
            code = action()
        os._exit(code)
    deadline, wait = time.monotonic() + SECONDS, 0.001
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code == BROKEN:
                raise RuntimeError(f"{action} raised an exception in its process")
            return "passed" if code == 0 else "timeout" if code in (-signal.SIGXCPU, -signal.SIGKILL) else "failed"
        time.sleep(wait)
        wait = min(0.05, 2 * wait)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def _limit(processor_seconds: float) -> None:
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    seconds = max(1, int(processor_seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))


def _pytest(target: Target, *plugins: object) -> int:
    """Run the target's tests in this process; returns pytest's exit code."""
    import pytest
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants",
        max_examples=MANY_EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),  # they fail on a busy machine
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),  # that an example fails is enough: no shrinking
    )
    settings.load_profile("mutants")
    # The suite's conftest would load its own; the class allows no plain assignment.
    type.__setattr__(settings, "load_profile", staticmethod(lambda name: None))
    # Without plugins there is no limit of wall time on a test, and less to start.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    arguments = ["-q", "-x", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    if target.without:
        arguments += ["-k", f"not ({target.without})"]
    return int(pytest.main([*arguments, *target.tests], plugins=list(plugins)))


def imported_anew(target: Target, source: str) -> int:
    """Run the tests with the module's code replaced by ``source``; 0 if they pass."""
    sys.meta_path.insert(0, _MutatedModule(target.module, source))
    return _pytest(target)


class Swapping:
    """A pytest plugin: in the place of a test run, one forked run for each mutant of a function.

    It writes to ``log`` a line of JSON for each such mutant, its position and outcome, and at the end the processor
    seconds that a mutant may take.
    """

    def __init__(self, target: Target, chosen: Sequence[Mutant], original: str, log: Path):
        self._target, self._chosen, self._original, self._log = target, chosen, original, log
        self.limit = float(PROCESSOR_SECONDS)
        self._in_child = False

    def pytest_runtestloop(self, session: Any) -> bool:
        took = {}
        for item in session.items:
            began = time.process_time()
            self._run([item])
            took[item] = time.process_time() - began
        if session.testsfailed:
            raise session.Failed("the tests fail without any change")
        self.limit = PROCESSOR_SECONDS + 10 * sum(took.values())
        items = sorted(session.items, key=took.__getitem__)
        module = sys.modules[dotted(self._target.module)]
        unchanged = executed(self._original, module)
        if forked(partial(self._run_in_child, items), self.limit) != "passed":
            raise session.Failed("the tests fail in a forked process without any change")
        with self._log.open("w") as log:
            for position, mutant in enumerate(self._chosen):
                place, other = (function_of(vars(module), mutant.function), None)
                with contextlib.suppress(Exception):
                    other = function_of(executed(mutant.source, module), mutant.function)
                if place is None or other is None or same(other, function_of(unchanged, mutant.function)):
                    continue
                if other.__code__.co_freevars == place.__code__.co_freevars:
                    ending = forked(partial(self._run_with, place, other, items), self.limit)
                    log.write(json.dumps([position, ending]) + "\n")
                    log.flush()
            log.write(json.dumps(self.limit) + "\n")
        return True

    def _run_with(self, place: FunctionType, other: FunctionType, items: Sequence[Any]) -> int:
        place.__code__ = other.__code__
        place.__defaults__, place.__kwdefaults__ = other.__defaults__, other.__kwdefaults__
        return self._run_in_child(items)

    def _run_in_child(self, items: Sequence[Any]) -> int:
        self._in_child = True
        of_property: dict[Any, Any] = {item: settings for item in items if (settings := _examples_of(item)) is not None}
        for item, found in of_property.items():
            _examples_of(item, type(found)(found, max_examples=FEW_EXAMPLES))
        self._run(items)
        for item, found in of_property.items():
            _examples_of(item, found)
        self._run(list(of_property))
        return 0

    def _run(self, items: Sequence[Any]) -> None:
        for item, following in pairwise([*items, None]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def pytest_runtest_setup(self) -> Iterator[None]:
        yield from self._ending_at_a_failure()

    def pytest_runtest_call(self) -> Iterator[None]:
        yield from self._ending_at_a_failure()

    def _ending_at_a_failure(self) -> Iterator[None]:
        import pytest

        try:
            return (yield)
        except pytest.skip.Exception:
            raise
        except BaseException:
            if self._in_child:
                os._exit(1)
            raise


def _examples_of(item: Any, settings: Any = None) -> Any:
    """The settings of a property test, after setting them if given; None for another test."""
    function = getattr(item, "obj", None)
    # hypothesis has no public way to change the settings of a test that is collected already
    if settings is not None:
        function._hypothesis_internal_use_settings = settings
    return getattr(function, "_hypothesis_internal_use_settings", None)


def executed(source: str, module: ModuleType) -> dict[str, Any]:
    """The names that ``source`` defines when it is run as ``module``, which it leaves alone."""
    namespace = {"__name__": module.__name__, "__file__": module.__file__, "__package__": module.__package__}
    exec(compile(source, module.__file__ or "", "exec"), namespace)
    return namespace


def function_of(namespace: Mapping[str, Any], qualified_name: str) -> FunctionType | None:
    """The function, or the method, that holds the code of that name; None outside of functions."""
    for name in qualified_name.split("."):
        place = namespace.get(name)
        place = getattr(place, "fget", None) or getattr(place, "__func__", None) or place
        while hasattr(place, "__wrapped__"):
            place = place.__wrapped__
        if isinstance(place, FunctionType):
            return place if place.__module__ == namespace["__name__"] else None
        if not isinstance(place, type):
            return None
        namespace = {"__name__": namespace["__name__"], **vars(place)}
    return None


def same(one: FunctionType, other: FunctionType | None) -> bool:
    """Whether two functions do the same, as far as their code and defaults say."""
    parts = ("__code__", "__defaults__", "__kwdefaults__")
    return other is not None and all(getattr(one, name) == getattr(other, name) for name in parts)


def fingerprint(target: Target) -> str:
    """A hash of the module and its tests, by which results are known to be out of date."""
    return hashlib.sha256(b"".join((ROOT / path).read_bytes() for path in (target.module, *target.tests))).hexdigest()


def _swap_all(target: Target, chosen: Sequence[Mutant], original: str, answer: Path) -> int:
    import pytest

    plugin = Swapping(target, chosen, original, answer)
    for hook in (Swapping.pytest_runtest_setup, Swapping.pytest_runtest_call):
        pytest.hookimpl(wrapper=True, tryfirst=True)(hook)
    return _pytest(target, plugin)


def try_mutants(target: Target) -> dict[str, Any]:
    """Run the tests against a module's mutants; the counts, and the survivors.

    Raises:
        RuntimeError: the tests fail without any change.
    """
    source = (ROOT / target.module).read_text()
    for name in ("hypothesis", "pytest", *target.preload):
        importlib.import_module(name)
    found = mutants(source)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    answer = OUTPUT / (target.module.replace("/", ".") + ".swapped.jsonl")
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with (OUTPUT / (target.module.replace("/", ".") + ".log")).open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            code = _swap_all(target, found, unparsed(source), answer)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"the tests of {target.module} fail without any change: {' '.join(target.tests)}")
    *lines, limit = map(json.loads, answer.read_text().splitlines())
    outcomes = dict(lines)
    if len(outcomes) < len(found) and forked(partial(imported_anew, target, source), 4 * limit) != "passed":
        raise RuntimeError(f"the tests of {target.module} fail without any change when it is imported anew")
    counts, survivors = {"failed": 0, "timeout": 0}, []
    with (OUTPUT / (target.module.replace("/", ".") + ".jsonl")).open("w") as log:
        for position, mutant in enumerate(found):
            ending = outcomes.get(position) or forked(partial(imported_anew, target, mutant.source), 4 * limit)
            record = {name: value for name, value in mutant._asdict().items() if name != "source"}
            if ending == "passed":
                survivors.append(record)
                print(f"survives {target.module}:{mutant.line}: {mutant.was} -> {mutant.becomes}", flush=True)
            else:
                counts[ending] += 1
            log.write(json.dumps(record | {"outcome": ending}) + "\n")
            log.flush()
    return {
        "fingerprint": fingerprint(target),
        "tests": list(target.tests),
        "mutants": len(found),
        **counts,
        "survivors": survivors,
    }


def unparsed(source: str) -> str:
    """A module's source as its mutants are written."""
    import ast

    return ast.unparse(ast.parse(source))


def write(results: Mapping[str, Any]) -> None:
    """Write `results.json`, in the order of the targets and without what is none any more."""
    RESULTS.write_text(json.dumps({name: results[name] for name in TARGETS if name in results}, indent=1) + "\n")


def argued_reason(argued: Sequence[dict[str, str]], module: str, survivor: dict[str, Any]) -> str | None:
    """The reason that ``argued`` has for a survivor; None without one."""
    for entry in argued:
        names = ("function", "was", "becomes")
        if entry["module"] == module and all(entry[name] == survivor[name] for name in names):
            return entry["reason"]
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="modules of targets.py (default: all)")
    parser.add_argument("--changed", action="store_true", help="only modules whose code or tests changed since")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no module after so many minutes")
    options = parser.parse_args()
    unknown = [name for name in options.modules if name not in TARGETS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; targets.py names {', '.join(TARGETS)}")
    os.chdir(ROOT)
    # In a forked process torch waits for threads that were not copied.
    os.environ["OMP_NUM_THREADS"] = "1"
    unargued, end = 0, time.monotonic() + 60 * options.minutes
    for name in options.modules or TARGETS:
        target = TARGETS[name]
        if time.monotonic() > end:
            print(f"{name}: not begun, the time is over", flush=True)
            unargued += 1
            continue
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        if options.changed and results.get(name, {}).get("fingerprint") == fingerprint(target):
            continue
        began = time.monotonic()
        try:
            found = try_mutants(target)
        except RuntimeError as error:
            print(error, flush=True)
            unargued += 1
            continue
        results[name] = found
        write(results)
        argued = json.loads(ARGUED.read_text())
        open_ones = [s for s in found["survivors"] if argued_reason(argued, name, s) is None]
        unargued += len(open_ones)
        print(
            f"{name}: {found['mutants']} mutants, {len(found['survivors'])} survive, "
            f"{len(open_ones)} without a reason; {time.monotonic() - began:.0f} s",
            flush=True,
        )
    return 1 if unargued else 0


if __name__ == "__main__":
    sys.exit(main())
