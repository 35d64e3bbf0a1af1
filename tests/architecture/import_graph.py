"""Who imports whom in this project, read from the source without running it."""

import ast
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

# The modules of a recipe that stand on verl, Ray or vLLM; all others at its root are pure.
IMPURE = {"__init__", "main", "verl_plugin", "trainer", "agent_loop", "reward_manager", "sft_dataset", "rl_dataset"}
IMPURE |= {"replica", "server_adapter", "run", "generation", "advantages", "two_players", "roles", "proposer"}

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
def imports(path: Path) -> frozenset[tuple[str, str]]:
    """Every import of a file, also inside functions: `import a.b` is ("a.b", ""), `from a import b` is ("a", "b")."""
    own = module_name(path)
    package = own if path.name == "__init__.py" else own.rpartition(".")[0]
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            found |= {(base, alias.name) for alias in node.names}
    return frozenset(found)


def imported_names(path: Path) -> frozenset[str]:
    """Every dotted name a file imports: `from a import b` gives "a" and "a.b"."""
    return frozenset(
        name for base, alias in imports(path) for name in ((base, f"{base}.{alias}") if alias else (base,))
    )


def top_level(names: set[str]) -> set[str]:
    """The first part of each dotted name."""
    return {name.partition(".")[0] for name in names}


@cache
def graph() -> dict[str, set[str]]:
    """Our own modules only: module -> the modules of ours that it imports.

    Imports inside functions and under TYPE_CHECKING count. ``from package import module`` is an import of the module:
    a package is counted only where something of its own is taken.
    """
    files = {name: path for package in PACKAGES for name, path in sources(package).items()}
    return {name: own_imports(path, files.keys()) for name, path in files.items()}


def own_imports(path: Path, modules: Collection[str]) -> set[str]:
    """The modules among `modules` that a file imports, wherever in the file the import stands."""
    found: set[str] = set()
    for base, alias in imports(path):
        name = f"{base}.{alias}" if alias else base
        found |= {name} & set(modules) or {base} & set(modules)
    return found


def room(module: str) -> str:
    """The first folder below the package for recipes ("recipes.launch"), the package itself for the others."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "recipes" else parts[0]


def reachable(start: str, edges: dict[str, set[str]]) -> Iterator[str]:
    """`start` and every module of ours that importing it may import."""
    seen, pending = set(), [start]
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending.extend(edges.get(name, ()))
            yield name
