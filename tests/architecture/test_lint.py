"""Ruff's linter and formatter, and mypy on the pure modules, are clean."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS = {
    "ruff check": ("-m", "ruff", "check", "."),
    "ruff format": ("-m", "ruff", "format", "--check", "."),
    "mypy": ("tests/architecture/types_of_pure_modules.py",),
}


# mypy takes a minute or two without its cache.
@pytest.mark.parametrize("name", ["ruff check", "ruff format", pytest.param("mypy", marks=pytest.mark.long)])
def test_clean(name):
    done = subprocess.run([sys.executable, *CHECKS[name]], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
