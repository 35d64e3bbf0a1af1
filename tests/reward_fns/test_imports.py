"""The walls: what this package may import, and how little an import of it costs."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "reward_fns"
ALLOWED = {"math_verify", "mpmath", "reward_fns"}
ENDPOINT_USERS = {"judge.py", "endpoint.py"}
ONLY_IN = {
    "openai": ENDPOINT_USERS,
    "tenacity": ENDPOINT_USERS,
    "pyarrow": {"check_dataset.py"},
    "lm_eval": {"trainers.py"},
}


def imported(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_only_the_allowed_libraries_are_imported(path):
    for name in imported(ast.parse(path.read_text())):
        allowed = name in sys.stdlib_module_names or name in ALLOWED or path.name in ONLY_IN.get(name, ())
        assert allowed, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "module",
    [
        "reward_fns",
        "reward_fns.result",
        "reward_fns.math",
        "reward_fns.majority",
        "reward_fns.judge",
        "reward_fns.trainers",
    ],
)
def test_an_import_is_cheap(module):
    """No grader, client or framework is loaded before it is used: verl's workers import reward modules by the dozen."""
    script = f"import sys, {module}; print(','.join(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        check=True,
    )
    heavy = {
        "sympy",
        "mpmath",
        "math_verify",
        "openai",
        "tenacity",
        "pyarrow",
        "numpy",
        "torch",
        "verl",
        "ray",
        "rapidfuzz",
    }
    assert heavy & set(done.stdout.strip().split(",")) == set()


def test_every_module_says_what_it_is():
    for path in PACKAGE.glob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.name
