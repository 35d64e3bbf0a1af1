"""Change one spot of a module at a time and run its tests: a change that no test notices is a gap in the tests.

    python tests/vllm_patches/tandem/mutation_run.py vllm_patches/tandem/plan.py tests/vllm_patches/tandem/test_plan.py

prints one line for each mutant that survives (line number, source line, change) and then the counts. Further arguments
go to pytest. Mutants run in forked processes, so that heavy imports are paid for once.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SWAPS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}


def changes(node: ast.AST) -> Iterator[tuple[str, callable]]:
    """The changes that can be made at a node: a description, and a function that makes it in a copy of the node."""
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            for other in SWAPS.get(type(operator), ()):
                yield (
                    f"{type(operator).__name__} -> {other.__name__}",
                    lambda n, i=i, o=other: n.ops.__setitem__(i, o()),
                )
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        for other in SWAPS.get(type(node.op), ()):
            yield f"{type(node.op).__name__} -> {other.__name__}", lambda n, o=other: setattr(n, "op", o())
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} -> {not node.value}", lambda n: setattr(n, "value", not n.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield f"{node.value} -> {node.value + 1}", lambda n: setattr(n, "value", n.value + 1)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "condition negated", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        # Two inversions are the value itself, for arrays and truth values alike.
        yield "inversion dropped", lambda n: setattr(n, "operand", ast.UnaryOp(type(n.op)(), n.operand))
    for field in ("body", "orelse", "finalbody"):
        for i, statement in enumerate(block if isinstance(block := getattr(node, field, None), list) else []):
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.Raise | ast.Expr | ast.Return):
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    continue
                if isinstance(node, ast.Module):
                    continue
                text = ast.unparse(statement).splitlines()[0]
                yield f"dropped: {text}", lambda n, f=field, i=i: getattr(n, f).__setitem__(i, ast.Pass())


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, change, mutated source) of each mutant; annotations are left alone."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    annotations = set()
    for node in nodes:
        for field in ("annotation", "returns"):
            if isinstance(part := getattr(node, field, None), ast.AST):
                annotations |= {id(inner) for inner in ast.walk(part)}
    for number, node in enumerate(nodes):
        if id(node) in annotations:
            continue
        for what, change in changes(node):
            changed = copy.deepcopy(tree)
            change(list(ast.walk(changed))[number])
            line = getattr(node, "lineno", 0)
            if what.startswith("dropped: "):
                first = next(
                    s for s in ast.walk(node) if isinstance(s, ast.stmt) and ast.unparse(s).startswith(what[9:])
                )
                line = first.lineno
            yield line, what, ast.unparse(ast.fix_missing_locations(changed))


class _MutatedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, name: str, path: Path, source: str):
        self._name, self._path, self._source = name, path, source

    def find_spec(self, name, path=None, target=None):
        if name == self._name:
            return importlib.util.spec_from_file_location(name, self._path, loader=self)
        return None

    def exec_module(self, module) -> None:
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)


def survives(module: str, path: Path, source: str, pytest_arguments: list[str], timeout: float) -> bool:
    """Whether the tests pass with ``module`` replaced by ``source``; a run past ``timeout`` seconds is a failure."""
    child = os.fork()
    if child == 0:
        os.setsid()
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        sys.meta_path.insert(0, _MutatedModule(module, path, source))
        try:
            import pytest

            _fewer_examples()
            code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *pytest_arguments])
        except BaseException:
            code = 1
        os._exit(int(code))
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _fewer_examples() -> None:
    """Make property tests try a few examples, the same ones for every mutant."""
    from hypothesis import settings

    settings.register_profile("mutants", max_examples=25, deadline=None, derandomize=True, database=None)
    settings.load_profile("mutants")
    # The suite's conftest would load its own; the class allows no plain assignment.
    type.__setattr__(settings, "load_profile", staticmethod(lambda name: None))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", type=Path, help="path of the module, from the repository root")
    parser.add_argument(
        "--preload", nargs="*", default=["numpy", "hypothesis", "pytest"], help="modules to import once"
    )
    parser.add_argument("--timeout", type=float, default=120, help="seconds per mutant")
    options, pytest_arguments = parser.parse_known_args()
    pytest_arguments = [argument for argument in pytest_arguments if argument != "--"]
    for name in options.preload:
        importlib.import_module(name)
    module = ".".join(options.module.with_suffix("").parts)
    source, path = options.module.read_text(), options.module.resolve()
    if not survives(module, path, source, pytest_arguments, options.timeout):
        print("the tests fail without any change", flush=True)
        return 2
    lines, survivors, total = source.splitlines(), 0, 0
    for line, what, mutated in mutants(source):
        total += 1
        if survives(module, path, mutated, pytest_arguments, options.timeout):
            survivors += 1
            print(f"SURVIVES {options.module.name}:{line}: {lines[line - 1].strip()} | {what}", flush=True)
    print(f"{options.module}: {total} mutants, {survivors} survive", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
