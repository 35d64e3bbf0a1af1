"""The wheel of the rewards alone: it asks for neither verl nor torch, and works in an environment that has neither."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("math_verify", "latex2sympy2_extended", "antlr4", "sympy", "mpmath")
USE = r"""
import importlib.util
from reward_fns.math import score
from reward_fns.majority import majority_vote
assert score(r"so \boxed{\sqrt{12}}", r"2\sqrt3").value == 1.0
assert score(r"so \boxed{12}", r"2\sqrt3", mode="lenient").value == 0.0
assert majority_vote([r"\boxed{1}", r"\boxed{1}"]).winner == 0
print([name for name in ("verl", "torch", "ray", "recipes", "vllm_patches") if importlib.util.find_spec(name)])
"""

pytestmark = pytest.mark.timeout(600)


def run(command, **options):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that no build folder stays in the source tree."""
    folder = tmp_path_factory.mktemp("rewards")
    shutil.copytree(ROOT / "reward_fns", folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), "source"]
    run(command, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def make_environment(folder):
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


def install(python, *arguments):
    run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *arguments])


def test_it_holds_the_package_and_asks_for_no_trainer(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
    modules = {path.name for path in (ROOT / "reward_fns").glob("*.py")}
    assert {name.split("/")[1] for name in names if name.startswith("reward_fns/") and name.endswith(".py")} == modules
    asked = {re.match(r"[A-Za-z0-9_.-]+", line)[0] for line in fields.get_all("Requires-Dist")}
    assert asked == {"math-verify", "antlr4-python3-runtime", "mpmath", "openai", "tenacity", "pyarrow"}
    plain = {line for line in fields.get_all("Requires-Dist") if "extra ==" not in line}
    assert len(plain) == 3


def test_it_works_where_only_its_requirements_are(wheel, tmp_path):
    python = make_environment(tmp_path / "environment")
    install(python, "--no-deps", "--no-index", str(wheel))
    (site,) = (tmp_path / "environment" / "lib").glob("python*/site-packages")
    for name in NEEDED:
        (site / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    for metadata in Path(sysconfig.get_path("purelib")).glob("*.dist-info"):
        if metadata.name.partition("-")[0] in (*NEEDED, "antlr4_python3_runtime"):
            (site / metadata.name).symlink_to(metadata)
    assert run([str(python), "-P", "-c", USE], cwd=tmp_path).strip() == "[]"


@pytest.mark.long
def test_pip_installs_it_with_its_requirements(wheel, tmp_path):
    python = make_environment(tmp_path / "environment")
    install(python, str(wheel))
    assert run([str(python), "-P", "-c", USE], cwd=tmp_path).strip() == "[]"
