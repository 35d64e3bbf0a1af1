"""The lines of code that a recipe's README gives for the formulas of its paper stand in the files it names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Rows that quote a line; tables that name functions write the file in code type and are not meant
ROW = re.compile(r"\| \[[\w.]+\]\(([^)]+\.py)\): `([^`]+)` \|$", re.MULTILINE)
TABLES = {
    readme.parent.name: rows
    for readme in sorted(ROOT.glob("recipes/*/README.md"))
    if (rows := ROW.findall(readme.read_text(encoding="utf-8")))
}


def test_there_are_such_tables():
    assert {"sppo", "tandem"} <= TABLES.keys()


@pytest.mark.parametrize("recipe", TABLES)
def test_each_line_stands_in_the_named_file_and_a_method_in_two_files(recipe):
    folder = ROOT / "recipes" / recipe
    for file, line in TABLES[recipe]:
        assert line.replace("\\|", "|") in (folder / file).read_text(encoding="utf-8"), (file, line)
    assert len({file for file, _ in TABLES[recipe]}) <= 2
