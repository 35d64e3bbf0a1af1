"""The measured tables in the recipes' pages are what `recipes.evaluation.report` makes of the logs beside them."""

import re
import shlex
from pathlib import Path

import pytest

from recipes.evaluation import report

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"<!-- python -m recipes\.evaluation\.report (.+?) -->\n((?:\|.*\n)+)")


def tables():
    for page in sorted(ROOT.glob("recipes/*/*.md")):
        for number, match in enumerate(COMMAND.finditer(page.read_text(encoding="utf-8")), 1):
            yield pytest.param(match[1], match[2], id=f"{page.parent.name}-{page.stem}-{number}")


@pytest.mark.parametrize(("arguments", "shown"), list(tables()))
def test_a_table_is_what_its_command_writes(arguments, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    table = tmp_path / "table.md"
    assert report.main([*shlex.split(arguments), "--output", str(tmp_path / "c.png"), "--markdown", str(table)]) == 0
    assert shown == table.read_text(encoding="utf-8")


def test_every_measured_recipe_has_such_a_table():
    measured = {path.parent.parent.name for path in ROOT.glob("recipes/*/results/*.jsonl")}
    checked = {
        path.parent.name
        for path in ROOT.glob("recipes/*/README.md")
        if COMMAND.search(path.read_text(encoding="utf-8"))
    }
    assert measured and measured == checked
