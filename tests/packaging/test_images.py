"""The locks of the two images fit the package, and the images' steps give an environment that works."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
EXTRA = {"cpu": ("cpu", "dpo", "smollm2", "dev"), "gpu": ("gpu", "dpo", "smollm2")}
# Installed before the lock: its CPU build is another file on every index.
BEFORE = {"cpu": {"torch"}, "gpu": set()}


def declared(stack: str) -> list[Requirement]:
    """What setup.py asks for, with the extras of a stack."""
    code = (
        "import json, setuptools; found = {}\n"
        "setuptools.setup = lambda **keywords: found.update(keywords)\n"
        "exec(compile(open('setup.py').read(), 'setup.py', 'exec'), {'__file__': 'setup.py'})\n"
        "print(json.dumps([found['install_requires'], found['extras_require']]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    base, extras = json.loads(done.stdout)
    return [Requirement(line) for line in [*base, *(line for name in EXTRA[stack] for line in extras[name])]]


def locked(stack: str) -> dict[str, tuple[Version, int]]:
    """Version and number of hashes of each distribution in a lock."""
    entries = re.split(r"\n(?=[a-z0-9])", (ROOT / "docker" / f"{stack}.lock").read_text())
    found = {}
    for entry in entries:
        name, version = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", entry).groups()
        found[re.sub(r"[-_.]+", "-", name).lower()] = (Version(version), entry.count("--hash=sha256:"))
    return found


@pytest.mark.parametrize("stack", ["cpu", "gpu"])
def test_a_lock_satisfies_what_the_package_declares_and_pins_every_file(stack):
    found = locked(stack)
    missed = []
    for requirement in declared(stack):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in BEFORE[stack]:
            continue
        if name not in found or not requirement.specifier.contains(found[name][0], prereleases=True):
            missed.append(f"{requirement}: locked {found.get(name, ('nothing',))[0]}")
    assert not missed, f"run docker/install.sh lock: {missed}"
    assert [name for name, (_, hashes) in found.items() if not hashes] == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_steps_of_the_cpu_image_in_an_environment_of_their_own(tmp_path):
    """No container engine is needed for this: the same script, in an empty environment and a copy of the checkout."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "checkout")], check=True, timeout=120)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VERL_", "RAY_"))
    }
    environment["PATH"] = f"{tmp_path / 'venv' / 'bin'}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "docker/install.sh", "cpu"], cwd=tmp_path / "checkout", env=environment,
        capture_output=True, text=True, timeout=1700,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
