"""Every command in a fenced block of a Markdown file runs, or composes, or names what it needs.

A comment `<!-- needs a GPU -->` (a service, the network, a new recipe ...) on the line above a fence says that its
commands cannot run here. Recipes are composed and checked all the same; of the others the options are checked. What
launchers start is `tests/recipes/launch/test_launch_matrix.py`'s.
"""

import ast
import contextlib
import functools
import importlib
import importlib.util
import io
import re
import runpy
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from documents import ROOT, Command, commands, documents, fences  # noqa: E402

FENCES = [fence for path in documents() for fence in fences(path)]
COMMANDS = [command for fence in FENCES if fence.language in ("bash", "sh", "shell") for command in commands(fence)]
RECIPES = sorted(path.parents[2].name for path in ROOT.glob("recipes/*/config/scale/toy.yaml"))
# What such a command does stands in a test of its own, or is the suite itself.
ELSEWHERE = {
    ("bash", "tests/run.sh"): "tests/run.sh",
    ("bash", "examples/quickstart.sh"): "tests/end_to_end/test_quickstart.py",
    ("bash", "examples/install.sh"): "tests/examples/test_install.py",
    ("python", "-m", "recipes.launch.doctor"): "tests/recipes/launch/test_doctor.py",
}
# Short commands that need nothing but files of their kind.
RUN_HERE = (
    "recipes.evaluation.report",
    "reward_fns.check_dataset",
    "tests/tools/score_cases.py",
)


def test_there_is_something_to_check():
    assert len(COMMANDS) > 30 and len({command.fence.file for command in COMMANDS}) > 6


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command(command, monkeypatch, tmp_path):
    words = command.words
    if covered := ELSEWHERE.get(words[:2]) or ELSEWHERE.get(words[:3]):
        assert (ROOT / covered).exists() and (words[1] == "-m" or (ROOT / words[1]).is_file())
        assert words[1] != "examples/quickstart.sh" or set(words[2:]) <= {"--toy", *RECIPES}
    elif words[0] == "bash" and words[1].startswith("recipes/"):
        check_launcher(command)
    elif module_of(command) in RUN_HERE and not command.fence.needs:
        run_here(command, monkeypatch, tmp_path)
    elif command.is_fragment:
        check_overrides(command)
    elif words[:2] == ("pip", "install"):
        check_extras(command)
    elif recipe := re.fullmatch(rf"recipes\.({'|'.join(RECIPES)})\.main", module_of(command) or ""):
        check_recipe(command, recipe[1], monkeypatch, tmp_path)
    else:
        if (module := module_of(command)) and "my_" not in module and module != "pytest":
            check_options(command, monkeypatch)
        assert command.fence.needs or (module or "").endswith("make.py"), (
            f"{command} is not run here: put a comment such as '<!-- needs a GPU -->' above its fence"
        )


@pytest.mark.parametrize("fence", [f for f in FENCES if f.language == "python"], ids=lambda f: f"{f.file}:{f.line}")
def test_python_in_a_document_compiles_and_imports_what_there_is(fence):
    for node in ast.walk(ast.parse(fence.body)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("recipes", "reward_fns", "vllm_patches"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names)


def module_of(command: Command) -> str | None:
    """`module` of `python -m module`, the path of `python path.py`, else None."""
    if command.words[0] not in ("python", "python3"):
        return None
    return command.words[2] if command.words[1] == "-m" else command.words[1]


def check_launcher(command: Command) -> None:
    """It exists, and some launcher reads each variable that the command sets."""
    assert (ROOT / command.words[1]).is_file()
    known = "".join(path.read_text() for path in ROOT.glob("recipes/*/*.sh"))
    known += "".join(path.read_text() for path in ROOT.glob("recipes/*/config/**/*.yaml"))
    assert not [name for name in command.environment if not re.search(rf"\b{name}\b", known)]


def check_recipe(command: Command, recipe: str, monkeypatch, folder: Path) -> None:
    """It composes, and the launch's checks refuse nothing but files and services that are not here."""
    from recipes.errors import DataError, EnvironmentProblem, MissingFileError
    from recipes.evaluation import during_training
    from recipes.launch.composition import compose_config
    from recipes.launch.worker_checks import check_workers

    for name in ("TOY_DIR", "STEP_PPO_DIR"):
        monkeypatch.setenv(name, str(folder))
    for name, value in command.environment.items():
        monkeypatch.setenv(name, value)
    launched = importlib.import_module(f"recipes.{recipe}.main").RECIPE
    given = [word for word in command.words[3:] if word not in ("--dry-run", "...")]
    evaluated, overrides = during_training.split(given)
    config = compose_config(launched.config_module, launched.config_name, overrides)
    if "service" not in command.fence.needs:
        with contextlib.suppress(MissingFileError, DataError, EnvironmentProblem, OSError):
            launched.check(config)
            if evaluated:
                during_training.add(config, evaluated)
    check_workers(config, launched.mini_batches(config))


def check_options(command: Command, monkeypatch) -> None:
    """The program is there, and its help names every option."""
    target, options = module_of(command), [word.partition("=")[0] for word in command.words if word.startswith("--")]
    is_module = command.words[1] == "-m"
    assert importlib.util.find_spec(target) if is_module else (ROOT / target).is_file(), f"there is no {target}"
    if options and not target.startswith("vllm."):
        help_ = run(target, ("--help",), is_module, monkeypatch)
        unknown = [option for option in options if not re.search(rf"{re.escape(option)}\b", help_)]
        assert not unknown, f"{target} does not know {unknown}"


def run(target: str, arguments: tuple[str, ...], is_module: bool, monkeypatch) -> str:
    """What a program prints, run in this process; a failure of it is one of the test."""
    monkeypatch.setattr(sys, "argv", [target, *arguments])
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            if is_module:
                runpy.run_module(target, run_name="__main__", alter_sys=True)
            else:
                monkeypatch.syspath_prepend(str((ROOT / target).parent))
                runpy.run_path(str(ROOT / target), run_name="__main__")
        except SystemExit as end:
            assert not end.code, output.getvalue()
    return output.getvalue()


def check_extras(command: Command) -> None:
    """The extras that are asked for exist."""
    assert "verl-duets[" not in str(command), "no index has the distribution"
    text = (ROOT / "setup.py").read_text()
    for extras in re.findall(r"\[([\w,]+)\]", " ".join(command.words)):
        assert all(f'"{extra}": [' in text for extra in extras.split(",")), f"{command}: setup.py has no such extra"


@functools.cache
def defaults():
    from recipes.launch.composition import verl_defaults

    return verl_defaults()


def check_overrides(command: Command) -> None:
    """Overrides in a fragment name keys of verl's config, unless they add one with `+`, and modules that exist."""
    for word in command.words:
        key, equals, value = word.partition("=")
        if not equals:
            continue
        if not key.startswith("+") and not key.startswith("algorithm.group_hook"):
            node = defaults()
            for part in key.split("."):
                assert node is not None and part in node, f"{command}: verl's config has no key {key}"
                node = node[part] if not isinstance(node[part], str | int | float | bool) else None
        if value.startswith("pkg://"):
            assert importlib.util.find_spec(value.removeprefix("pkg://")), f"{command}: no module {value}"


def run_here(command: Command, monkeypatch, folder: Path) -> None:
    """Run a short command where the files that it names are: those of the checkout, or some of their kind."""
    log = next((ROOT / "recipes").glob("*/results/*.jsonl"))
    row = {"data_source": "m", "prompt": [{"role": "user", "content": "1 + 1?"}], "ability": "math"}
    row |= {"reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"index": 0}}
    for word in command.words:
        path = folder / word.rpartition("=")[2]
        if path.suffix in (".jsonl", ".parquet"):
            path.parent.mkdir(parents=True, exist_ok=True)
            here = ROOT / word if (ROOT / word).is_file() else log
            path.write_bytes(here.read_bytes())
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    monkeypatch.chdir(folder)
    is_module = command.words[1] == "-m"
    arguments = command.words[3 if is_module else 2 :]
    run(module_of(command), tuple(word for word in arguments if word != "..."), is_module, monkeypatch)
