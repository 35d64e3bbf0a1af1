"""The wheel: what it holds, what it asks for, and that it works from a clean environment and another folder."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGES = ("recipes", "reward_fns", "vllm_patches")
DATA_SUFFIXES = {".html", ".yaml", ".json", ".jsonl", ".md", ".png", ".sh", ".txt"}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """A copy to build from, so that no build folder of an earlier version can add files."""
    source = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(scope="session")
def wheel(tmp_path_factory, source):
    """The wheel built from that copy."""
    target = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)])
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def clean_python(tmp_path_factory, wheel):
    """Python of a new environment that holds the wheel alone and borrows the other packages of this one."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            str(wheel),
        ]
    )
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(command, **options):
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def package_files(source):
    files = [path for package in PACKAGES for path in (source / package).rglob("*") if path.is_file()]
    # It builds the wheel of the rewards alone, and is no part of this one.
    return [path for path in files if path != source / "reward_fns" / "pyproject.toml"]


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_every_source_and_data_file_is_inside_and_nothing_else(wheel, source):
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {str(path.relative_to(source)) for path in package_files(source)}
    assert inside == expected
    assert {Path(name).suffix for name in inside} >= {".py", ".yaml", ".md", ".sh"}


def test_no_kind_of_file_is_left_behind(source):
    kinds = {path.suffix for path in package_files(source)}
    assert kinds <= DATA_SUFFIXES | {".py"}, "a new kind of file needs a pattern in setup.py's package_data"


def test_metadata(wheel):
    fields = metadata(wheel)
    assert (fields["Name"], fields["License-Expression"]) == ("verl-duets", "Apache-2.0")
    assert set(fields["Requires-Python"].split(",")) == {">=3.11", "<3.13"}
    assert set(fields.get_all("Provides-Extra")) == {
        "cpu",
        "gpu",
        "dpo",
        "dev",
        "smollm2",
        "site",
        "flash",
        "split",
        "tasks",
    }
    assert fields["License-File"] == "LICENSE"


def test_a_plain_install_asks_for_no_engine_and_no_accelerator(wheel):
    base = [line for line in metadata(wheel).get_all("Requires-Dist") if "extra ==" not in line]
    assert any(line.startswith("verl") for line in base)
    for word in ("vllm", "sglang", "flash", "nvidia", "cuda", "cupy", "xformers"):
        assert not any(word in line.lower() for line in base), f"{word} in {base}"


def pins_of_verls_vllm_extra():
    """What verl's own line, pip install "verl[vllm]", pins to one version each."""
    requirements = [Requirement(line) for line in importlib.metadata.requires("verl")]
    chosen = [r for r in requirements if r.marker is not None and r.marker.evaluate({"extra": "vllm"})]
    return {r.name.lower(): str(r.specifier)[2:] for r in chosen if str(r.specifier).startswith("==")}


def test_verls_own_install_line_fits_beside_ours(wheel):
    pins = pins_of_verls_vllm_extra()
    assert {"transformers", "torch", "vllm"} <= pins.keys()
    ours = [Requirement(line) for line in metadata(wheel).get_all("Requires-Dist")]
    plain = [r for r in ours if r.marker is None or r.marker.evaluate({"extra": "gpu"})]
    misfits = [
        f"{r} against {pins[r.name.lower()]}"
        for r in plain
        if r.name.lower() in pins and not r.specifier.contains(pins[r.name.lower()])
    ]
    assert misfits == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_verls_own_install_line_resolves_with_ours(tmp_path, wheel):
    venv.create(tmp_path / "venv", with_pip=True)
    python, report = str(tmp_path / "venv" / "bin" / "python"), tmp_path / "report.json"
    line = ["install", "--dry-run", "--quiet", "--report", str(report), "verl[vllm]==0.9.1", str(wheel)]
    run([python, "-m", "pip", *line])
    resolved = {item["metadata"]["name"].lower() for item in json.loads(report.read_text())["install"]}
    assert {"verl", "verl-duets", "vllm", "torch", "transformers"} <= resolved


def test_entry_points(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        lines = archive.read(name).decode().split("\n")
    assert [line for line in lines if line.strip()] == [
        "[verl.plugins]",
        "verl_duets = recipes.plugin",
        "[vllm.general_plugins]",
        "verl_duets = vllm_patches:register",
    ]


def test_packages_import_from_the_clean_environment(clean_python, tmp_path):
    code = (
        "import recipes, reward_fns, vllm_patches; print(recipes.__file__, reward_fns.__file__, vllm_patches.__file__)"
    )
    for path in run([str(clean_python), "-c", code], cwd=tmp_path).split():
        assert Path(path).is_relative_to(clean_python.parents[1])


def test_verl_finds_the_plug_in_there(clean_python, tmp_path):
    code = "import verl, sys; print(sys.modules['recipes.plugin'].__file__)"
    loaded = run([str(clean_python), "-c", code], cwd=tmp_path).split()[-1]
    assert Path(loaded).is_relative_to(clean_python.parents[1])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_plain_install_resolves_and_imports(tmp_path, wheel):
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    run([python, "-m", "pip", "install", "--quiet", str(wheel)])
    run([python, "-m", "pip", "check"])
    code = "import recipes.plugin, reward_fns.math, verl.trainer.ppo.core_algos, sys; assert 'vllm' not in sys.modules"
    run([python, "-c", code], cwd=tmp_path)
