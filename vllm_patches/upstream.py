"""Which upstream code this project was read against: lock files, their check, and how upstream code is replaced.

A lock file (JSON) maps each feature of this project to the upstream symbols that it relies on, "module:attribute.path",
and each symbol to what is known of it: digests of its code, or, where only a call must fit, its parameters.

    python -m vllm_patches.upstream LOCK                                # take the installed code for known
    python -m vllm_patches.upstream LOCK FEATURE                        # only what this feature relies on
    python -m vllm_patches.upstream [--parameters] LOCK FEATURE SYMBOL  # add a symbol to a feature

What is known of other versions stays. Read what changed first: the check holds only what was read. Source files are
parsed, nothing upstream is imported.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar


def problems(lock: Path, *features: str, module: str = "", digests: bool = True) -> list[str]:
    """One sentence for each symbol that is not as a lock file knows it; empty when all are.

    Args:
        features: look only at what these rely on; at all when none is named.
        module: look only at symbols of this upstream module; at all when empty.
        digests: False takes any code: symbols must be there, with known parameters where those are compared.
    """
    _parsed.cache_clear()
    known_of: dict[str, dict[str, list[str]]] = json.loads(lock.read_text())["features"]
    sentences = []
    for feature in features or known_of:
        for symbol, known in known_of[feature].items():
            if module in ("", symbol.partition(":")[0]) and (fault := _fault(symbol, known, digests)):
                sentences.append(f"{symbol} ({feature}): {fault}")
    _parsed.cache_clear()
    return sentences


def _fault(symbol: str, accepted: list[str], digests: bool) -> str | None:
    by_parameters = accepted[0].startswith("(")
    try:
        present = reading(symbol, by_parameters)
    except (LookupError, OSError, SyntaxError) as error:
        return f"missing: {error}"
    if present in accepted or not (digests or by_parameters):
        return None
    kind = "parameters" if by_parameters else "code of digest"
    return f"changed: {kind} {present}, known {'is' if len(accepted) == 1 else 'are'} {' '.join(accepted)}"


def reading(symbol: str, parameters: bool = False) -> str:
    """A symbol as it is installed now: the digest of its code, or its parameters, as in "(self, batch)".

    A digest is 16 hex digits of the syntax tree's SHA-256: comments, layout and docstrings do not count.

    Raises:
        LookupError: it is not there, or is no function where parameters are asked for.
    """
    module, _, path = symbol.partition(":")
    definition = _definition(module, path.split("."))
    if not parameters:
        # Python 3.12 writes a field that 3.11 does not have.
        text = ast.dump(ast.Module([definition], [])).replace(", type_params=[]", "")
        return sha256(text.encode()).hexdigest()[:16]
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        raise LookupError(f"{path} is not a function")
    listed = definition.args
    names = [*listed.posonlyargs, *listed.args, listed.vararg, *listed.kwonlyargs, listed.kwarg]
    return f"({', '.join(name.arg for name in names if name)})"


def _definition(module: str, path: list[str]) -> ast.stmt:
    """The statement that defines `path` in a module; an import from another project stands for what it imports."""
    statements, package = _parsed(module)
    statement = _named(path[0], statements)
    if statement is None:
        raise LookupError(f"no {path[0]} in {module}")
    if isinstance(statement, ast.ImportFrom):
        source = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
        if source.partition(".")[0] == module.partition(".")[0]:
            return _definition(source, [statement.names[0].name, *path[1:]])
    for number, name in enumerate(path[1:], 1):
        inner = _named(name, statement.body) if isinstance(statement, ast.ClassDef) else None
        if inner is None:
            return _inherited(module, statement, path[number:])
        statement = inner
    return statement


def _inherited(module: str, found: ast.stmt, path: list[str]) -> ast.stmt:
    for base in found.bases if isinstance(found, ast.ClassDef) else ():
        try:
            return _definition(module, [ast.unparse(base).partition("[")[0], *path])
        except LookupError:
            continue
    raise LookupError(f"{getattr(found, 'name', module)} has no {path[0]}")


def _named(name: str, statements: list[ast.stmt]) -> ast.stmt | None:
    """The last of these statements that defines a name, those in branches included."""
    definition: ast.stmt | None = None
    for statement in statements:
        match statement:
            case ast.FunctionDef(name=other) | ast.AsyncFunctionDef(name=other) | ast.ClassDef(name=other):
                definition = statement if other == name else definition
            case ast.Assign(targets=[ast.Name(id=other)]) | ast.AnnAssign(target=ast.Name(id=other)):
                definition = statement if other == name else definition
            case ast.ImportFrom(source, aliases, level):
                names = [alias for alias in aliases if name == (alias.asname or alias.name)]
                definition = ast.ImportFrom(source, names, level) if names else definition
            case ast.If() | ast.Try():
                branches = [statement.body, statement.orelse, *(one.body for one in getattr(statement, "handlers", ()))]
                definition = next(filter(None, (_named(name, branch) for branch in branches)), definition)
    return definition


@functools.cache
def _parsed(module: str) -> tuple[list[ast.stmt], str]:
    """A module's statements without docstrings, and the package that its relative imports start from."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise LookupError(f"{top} is not installed")
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, *rest)
        for file, package in ((path / "__init__.py", module), (path.with_suffix(".py"), module.rpartition(".")[0])):
            if file.is_file():
                tree = ast.parse(file.read_text(encoding="utf-8"))
                for node in ast.walk(tree):
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        if ast.get_docstring(node):
                            node.body = node.body[1:] or [ast.Pass()]
                return tree.body, package
    raise LookupError(f"no module {module}")


def update(lock: Path, feature: str | None = None, symbols: tuple[str, ...] = (), parameters: bool = False) -> None:
    """Write what is installed into a lock file, beside what is known of other versions.

    Raises:
        LookupError: a symbol is not there; the file stays as it was.
    """
    _parsed.cache_clear()
    content = json.loads(lock.read_text())
    for name in (feature,) if feature else tuple(content["features"]):
        known_of = content["features"].setdefault(name, {})
        for symbol in symbols or tuple(known_of):
            accepted = known_of.setdefault(symbol, [])
            digest = reading(symbol, accepted[0].startswith("(") if accepted else parameters)
            if digest not in accepted:
                accepted.append(digest)
                print(f"{name}: {symbol} {digest}")
        content["features"][name] = dict(sorted(known_of.items()))
    content["versions"] = {top: sorted({*versions, *_installed(top)}) for top, versions in content["versions"].items()}
    content["features"] = dict(sorted(content["features"].items()))
    lock.write_text(json.dumps(content, indent=1) + "\n")


def _installed(top: str) -> list[str]:
    for name in (top, f"{top}-cpu"):  # vLLM's build for CPUs is a distribution of its own
        for distribution in importlib.metadata.distributions(name=name):
            return [distribution.version.partition("+")[0]]
    return []


Replacement = TypeVar("Replacement", bound=Callable[..., Any])


def replaces(upstream: Callable[..., Any]) -> Callable[[Replacement], Replacement]:
    """Decorate what takes the place of an upstream callable: it takes its name and leads back to it."""

    def mark(replacement: Replacement) -> Replacement:
        attributes = () if isinstance(upstream, type) else functools.WRAPPER_UPDATES
        functools.update_wrapper(replacement, upstream, updated=attributes)
        # Not the callable itself: what wraps the replacement copies its attributes, and Ray would pickle it by value.
        vars(replacement)["replaces"] = f"{upstream.__module__}.{upstream.__qualname__}"
        return replacement

    return mark


def is_replaced(found: Any) -> bool:
    """Whether this is a replacement of ours, or a property with one: patching again is needless."""
    return hasattr(found.fget if isinstance(found, property) else found, "replaces")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m vllm_patches.upstream")
    parser.add_argument("lock", type=Path)
    parser.add_argument("feature", nargs="?")
    parser.add_argument("symbols", nargs="*")
    parser.add_argument("--parameters", action="store_true", help="compare parameters only, not the code")
    chosen = parser.parse_args()
    update(chosen.lock, chosen.feature, tuple(chosen.symbols), chosen.parameters)
