"""Every command in a fenced block of a Markdown file runs, or dry-runs on prepared data, or names what it needs.

A comment `<!-- needs a GPU -->` (a service, the network, a new recipe ...) on the line above a fence says that its
commands cannot run here. Their launchers and recipes are dry-run all the same; of the others the options are checked.
"""

import ast
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from documents import ROOT, Command, commands, documents, fences  # noqa: E402

FENCES = [fence for path in documents() for fence in fences(path)]
COMMANDS = [command for fence in FENCES if fence.language in ("bash", "sh", "shell") for command in commands(fence)]
RECIPES = sorted(path.parents[2].name for path in ROOT.glob("recipes/*/config/scale/toy.yaml"))
RECIPE = re.compile(rf"recipes\.({'|'.join(RECIPES)})\.main")
# What such a command does stands in a test of its own, or is the suite itself.
ELSEWHERE = {
    ("bash", "tests/run.sh"): "tests/run.sh",
    ("bash", "examples/quickstart.sh"): "tests/end_to_end/test_quickstart.py",
    ("bash", "examples/install.sh"): "tests/examples/test_install.py",
    ("python", "-m", "recipes.doctor"): "tests/recipes/doctor/test_doctor.py",
}
# Short commands that need nothing but the prepared folder.
RUN_HERE = (
    "recipes.evaluation.report",
    "reward_fns.check_dataset",
    "reward_fns.score_cases",
)


def launcher(command: Command) -> bool:
    return command.words[0] == "bash" and bool(re.fullmatch(r"recipes/\w+/\w+\.sh", command.words[1]))


def module_of(command: Command) -> str | None:
    """`module` of `python -m module`, the path of `python path.py`, else None."""
    if command.words[0] not in ("python", "python3"):
        return None
    return command.words[2] if command.words[1] == "-m" else command.words[1]


def recipe_of(command: Command) -> str | None:
    match = RECIPE.fullmatch(module_of(command) or "")
    return match[1] if match else None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The prepared folder."""
    from prepared import prepare

    path = tmp_path_factory.mktemp("prepared")
    prepare(path)
    return path


@pytest.fixture(scope="module")
def environment(folder):
    """The environment of the commands: this checkout, offline, and fakes that write down what launchers start."""
    fakes = folder / "fakes"
    fakes.mkdir()
    for name in ("python", "python3", "torchrun", "accelerate"):
        fake = fakes / name
        fake.write_text(f'#!/bin/bash\nexec "{sys.executable}" "{HERE / "fake_program.py"}" {name} "$@"\n')
        fake.chmod(0o755)
    cleared = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_", "RAY_", "TOY_", "SERL_", "STEP_PPO"))}
    own = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "FAKES": str(fakes)}
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return cleared | own


@pytest.fixture(scope="module")
def started(folder, environment):
    """What the launchers start, by command: lists of (program, arguments, environment)."""
    found = {}
    for number, command in enumerate(COMMANDS):
        if not launcher(command):
            continue
        log = folder / f"launcher.{number}.jsonl"
        # A folder of models that the reader is thought to have.
        given = {k: str(folder / "policy") if v.startswith("/models/") else v for k, v in command.environment.items()}
        with_fakes = {"PATH": f"{environment['FAKES']}:{environment['PATH']}", "FAKE_LOG": str(log)}
        done = subprocess.run(
            list(command.words), cwd=folder, env=environment | given | with_fakes,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
        found[command] = [json.loads(line) for line in log.read_text().splitlines()]
    return found


@pytest.fixture(scope="module")
def dry_runs(folder, environment, started):
    """Exit code and output of every recipe that a command or a launcher starts, with --dry-run, by command."""
    wanted = []
    for number, command in enumerate(COMMANDS):
        if "service" in command.fence.needs:
            # The checks before a start ask it.
            continue
        if launcher(command):
            calls = [(c["arguments"], c["environment"]) for c in started[command] if "python" in c["program"]]
        else:
            calls = [([*command.words[1:]], command.environment)] if recipe_of(command) else []
        for arguments, more in calls:
            if arguments[:1] == ["-m"] and RECIPE.fullmatch(arguments[1]) and "..." not in arguments:
                wanted.append({"command": number, "arguments": arguments, "environment": more})
    (folder / "dry_runs.json").write_text(json.dumps(wanted))
    done = subprocess.run(
        [sys.executable, str(HERE / "dry_runs.py"), "dry_runs.json", "dry_runs.out.jsonl"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=540,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    results = [json.loads(line) for line in (folder / "dry_runs.out.jsonl").read_text().splitlines()]
    return {COMMANDS[r["command"]]: r for r in results}, len(wanted)


def test_there_is_something_to_check():
    assert len(COMMANDS) > 30 and len({command.fence.file for command in COMMANDS}) > 6


@pytest.mark.timeout(600)
def test_recipes_and_launchers_dry_run(dry_runs):
    """All of them in one test: a process that has imported verl makes a fork for each."""
    results, wanted = dry_runs
    refused = [f"{c}\n{r['output'][-600:]}" for c, r in results.items() if r["code"]]
    assert not refused, "\n\n".join(refused)
    assert wanted >= len(results) > 20


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command(command, folder, environment, started):
    if launcher(command):
        for call in started[command]:
            check_call(call["program"], call["arguments"])
        return
    if covered := ELSEWHERE.get(command.words[:2]) or ELSEWHERE.get(command.words[:3]):
        assert (ROOT / covered).is_file()
        assert command.words[1] == "-m" or (ROOT / command.words[1]).is_file()
        if command.words[1] == "examples/quickstart.sh":
            assert set(command.words[2:]) <= set(RECIPES)
        return
    module = module_of(command)
    if module in RUN_HERE and not command.fence.needs:
        run_here(command, folder, environment)
        return
    if command.is_fragment:
        check_overrides(command)
        return
    if command.words[:2] == ("pip", "install"):
        check_extras(command)
        return
    if recipe_of(command):
        return
    if module is not None and "my_" not in module and module != "pytest":
        # Whatever it needs, its options exist.
        check_call("python", list(command.words[1:]))
        if module.endswith("make.py"):
            return
    assert command.fence.needs, (
        f"{command} is neither run nor dry-run here: put a comment such as '<!-- needs a GPU -->' above its fence"
    )


@pytest.mark.parametrize("fence", [f for f in FENCES if f.language == "python"], ids=lambda f: f"{f.file}:{f.line}")
def test_python_in_a_document_compiles_and_imports_what_there_is(fence):
    for node in ast.walk(ast.parse(fence.body)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("recipes", "reward_fns", "vllm_patches"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names)


def check_call(program: str, arguments: list[str]) -> None:
    """A started program is one of ours, and every option exists; recipes are dry-run elsewhere."""
    if program == "accelerate" or program == "torchrun":
        arguments = arguments[arguments.index("-m") :]
    if arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]), f"there is no module {arguments[1]}"
        if RECIPE.fullmatch(arguments[1]) or "=" in "".join(a for a in arguments[2:3] if not a.startswith("-")):
            return
        target, options = ["-m", arguments[1]], arguments[2:]
    else:
        assert (ROOT / arguments[0]).is_file(), f"there is no {arguments[0]}"
        target, options = [str(ROOT / arguments[0])], arguments[1:]
    options = [word.partition("=")[0] for word in options if word.startswith("--") and " " not in word]
    if options:
        help_ = subprocess.run(
            [sys.executable, *target, "--help"], capture_output=True, text=True, timeout=120, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )  # fmt: skip
        assert help_.returncode == 0, help_.stderr
        unknown = [option for option in options if not re.search(rf"{re.escape(option)}\b", help_.stdout)]
        assert not unknown, f"{arguments} has options that {target[-1]} does not know: {unknown}"


def check_extras(command: Command) -> None:
    """The extras that are asked for exist."""
    text = (ROOT / "setup.py").read_text()
    for extras in re.findall(r"\[([\w,]+)\]", " ".join(command.words)):
        for extra in extras.split(","):
            assert f'"{extra}": [' in text, f"{command}: setup.py has no extra {extra}"


def check_overrides(command: Command) -> None:
    """Overrides in a fragment name keys of verl's config, unless they add one with `+`, and files that exist."""
    from recipes.launch.composition import verl_defaults

    defaults = verl_defaults()
    for word in command.words:
        key, equals, value = word.partition("=")
        if not equals:
            continue
        if not key.startswith("+") and not key.startswith("algorithm.group_hook"):
            node = defaults
            for part in key.split("."):
                assert node is not None and part in node, f"{command}: verl's config has no key {key}"
                node = node[part] if not isinstance(node[part], str | int | float | bool) else None
        if value.startswith("pkg://"):
            assert importlib.util.find_spec(value.removeprefix("pkg://")), f"{command}: no module {value}"


def run_here(command: Command, folder: Path, environment: dict[str, str]) -> None:
    """Run a short command; files that it names and the reader would have are put there."""
    words = [word for word in command.words if word != "..."]
    log = next((ROOT / "recipes").glob("*/results/*.jsonl"))
    for word in words:
        path = word.rpartition("=")[2]
        if path.endswith(".jsonl") and not (folder / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(log.read_bytes())
        if path.endswith(".parquet") and not (folder / path).exists():
            (folder / path).write_bytes((folder / "outputs/data/math/train.parquet").read_bytes())
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=folder, env=environment | command.environment,
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
