"""Every file of the project parses, and speaks of no particular machine."""

import ast
import functools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SKIPPED = re.compile(r"^(\.venv.*|\.git|\.cache|\..*_cache|\.hypothesis|__pycache__|outputs|build|dist|.*\.egg-info)$")
# A home directory or a scratch mount; "/home/" and the like alone, as in a pattern, name nobody.
MACHINE_PATH = re.compile(r"(?<![\w.}$)-])/(?:work|home|root|Users|mnt|data\d*)/\w[\w.-]*/|[A-Z]:\\Users\\\w")


@functools.cache
def files() -> list[Path]:
    """Every file of the checkout but what tools and runs have made."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not SKIPPED.match(name)]
        found += [Path(folder, name) for name in names if not SKIPPED.match(name)]
    return sorted(found)


def problem(path: Path) -> str | None:
    """What is wrong with the syntax of a file, or a Python module without a docstring."""
    try:
        if path.suffix == ".sh":
            done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
            return done.stderr or None
        if path.suffix in (".yaml", ".yml"):
            list(yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader))
        if path.suffix in (".json", ".jsonl"):
            text = path.read_text(encoding="utf-8")
            for document in text.splitlines() if path.suffix == ".jsonl" else [text]:
                json.loads(document)
        if path.suffix == ".py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            return "no module docstring" if tree.body and not ast.get_docstring(tree) else None
    except (ValueError, SyntaxError, yaml.YAMLError) as error:
        return str(error)
    return None


def test_every_file_parses_and_every_module_says_what_it_is():
    assert {str(path.relative_to(ROOT)): found for path in files() if (found := problem(path))} == {}


@pytest.mark.parametrize(
    ("name", "text"), [("a.sh", "if"), ("a.yaml", "a: ["), ("a.jsonl", "{}\n{"), ("a.py", "x = 1"), ("b.py", "x =")]
)
def test_what_does_not_parse_is_seen(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert problem(tmp_path / name)


def imported_siblings(path: Path) -> set[Path]:
    """The modules of its own folder that the file at ``path`` imports by their bare names."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module)
    return {path.with_name(f"{name}.py") for name in names} & {*path.parent.glob("*.py")}


def same_names(folder: Path) -> dict[str, list[str]]:
    """Modules below ``folder`` that the files beside them import by a bare name which another one has, too."""
    found = sorted({module for path in folder.rglob("*.py") for module in imported_siblings(path)})
    stems = [module.stem for module in found]
    return {
        stem: [str(m.relative_to(folder)) for m in found if m.stem == stem] for stem in stems if stems.count(stem) > 1
    }


def test_helpers_of_tests_do_not_stand_in_for_each_other():
    """One pytest imports them all by their bare names, and of two with one name every test would get the first."""
    assert same_names(ROOT / "tests") == {}


def test_two_helpers_of_one_name_are_seen(tmp_path):
    for folder, line in (
        ("a", "import run"),
        ("b", "from run import x"),
        ("c", "def f():\n    import rows"),
        ("d", "import run"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_it.py").write_text(line)
    for module in ("a/run.py", "b/run.py", "c/rows.py"):
        (tmp_path / module).write_text("")
    assert same_names(tmp_path) == {"run": ["a/run.py", "b/run.py"]}


def test_no_file_names_a_place_on_somebodys_machine():
    offences = []
    for path in files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        offences += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(lines, 1)
            if MACHINE_PATH.search(line)
        ]
    assert offences == []


@pytest.mark.parametrize(
    ("text", "is_machine_path"),
    [
        ("see /" + "home/ann/models/qwen", True),
        ("/" + "work/main/x.py", True),
        ("C:\\" + "Users\\ann", True),
        ("framework/main/x.py", False),
        ("https://example.org/home/ann/x", False),
        ("${DATA}/home/x/y", False),
        ("/path/to/model", False),
    ],
)
def test_what_counts_as_a_machine_path(text, is_machine_path):
    assert bool(MACHINE_PATH.search(text)) is is_machine_path
