"""Who imports whom in this project, read from the source without running it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("recipes", "reward_fns", "vllm_patches")


def module_name(path: Path) -> str:
    """Dotted name of a source file below the repository root."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(package: str) -> dict[str, Path]:
    """Dotted name -> file of every module in one of our packages."""
    return {module_name(path): path for path in sorted((ROOT / package).rglob("*.py"))}


@cache
def imported_names(path: Path) -> frozenset[str]:
    """Every dotted name a file imports, also inside functions: `from a import b` gives "a" and "a.b"."""
    own = module_name(path)
    package = own if path.name == "__init__.py" else own.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(names)


def top_level(names: set[str]) -> set[str]:
    """The first part of each dotted name."""
    return {name.partition(".")[0] for name in names}


@cache
def graph() -> dict[str, set[str]]:
    """Our own modules only: module -> the modules of ours that it imports."""
    files = {name: path for package in PACKAGES for name, path in sources(package).items()}
    return {name: set(imported_names(path) & files.keys()) for name, path in files.items()}


def reachable(start: str, edges: dict[str, set[str]]) -> Iterator[str]:
    """`start` and every module of ours that importing it may import."""
    seen, pending = set(), [start]
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending.extend(edges.get(name, ()))
            yield name
