"""The installer's decisions, with real shells, interpreters and locks; the whole installation runs with --long."""

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """A folder with a space in its name that holds what the installer reads."""
    folder = tmp_path / "a checkout"
    (folder / "examples").mkdir(parents=True)
    (folder / "recipes" / "sppo" / "config" / "scale").mkdir(parents=True)
    sppo = ("recipes/sppo/main.py", "recipes/sppo/config/scale/toy.yaml")
    for name in ("setup.py", "examples/install.sh", "examples/quickstart.sh", *sppo):
        shutil.copy(ROOT / name, folder / name)
    return folder


def shell(checkout, code, path=None, **environment):
    """Source the installer from another folder and run ``code``."""
    return subprocess.run(
        ["bash", "-c", f'source "$1/examples/install.sh"\n{textwrap.dedent(code)}', "bash", str(checkout)],
        capture_output=True,
        text=True,
        cwd="/",
        timeout=120,
        env={**os.environ, "PYTHON": sys.executable, **({"PATH": path} if path else {}), **environment},
    )


def program(folder, name, code):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{code}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def one_sentence(done):
    lines = [line for line in done.stderr.splitlines() if line.startswith("verl-duets: ")]
    assert len(lines) == 1 and lines == done.stderr.splitlines()[-1:], done.stderr
    return lines[0]


def stamped_environment(checkout):
    venv.create(checkout / ".venv", with_pip=False)
    done = shell(checkout, '_duets_fingerprint >"$_duets_stamp"')
    assert done.returncode == 0, done.stderr


def test_wrong_python_is_named(checkout, tmp_path):
    program(tmp_path / "bin", "python3.9", "exit 1")
    done = shell(checkout, "duets_install", PYTHON=str(tmp_path / "bin" / "python3.9"))
    assert done.returncode == 1
    assert "python3.9 is no Python 3.11 or 3.12" in one_sentence(done)
    assert not (checkout / ".venv").exists()


def test_no_python_on_the_path(checkout, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname", "mkdir", "cat"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    done = shell(checkout, "unset PYTHON; duets_install", path=str(tmp_path / "bin"))
    assert done.returncode == 1
    assert "no Python 3.11 or 3.12" in one_sentence(done)


def test_a_shim_without_its_version_is_passed_over(checkout, tmp_path):
    path = program(tmp_path / "bin", "python3.11", 'echo "version not installed" >&2; exit 127')
    (tmp_path / "bin" / "python3.12").symlink_to("python3.11")
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin" / "python3").chmod(0o755)
    done = shell(checkout, "unset PYTHON; _duets_find_python", path=path)
    assert done.stdout.strip() == sys.executable


def test_too_little_space_is_said_before_anything_is_made(checkout, tmp_path):
    path = program(tmp_path / "bin", "df", "printf 'Filesystem blocks used available\\nd 9 9 3145728 1%% /\\n'")
    done = shell(checkout, "duets_install", path=path)
    assert done.returncode == 1
    assert "3 GB free" in one_sentence(done) and "about 6" in one_sentence(done)
    assert not (checkout / ".venv").exists()


def test_a_stamped_environment_is_taken_as_it_is(checkout):
    stamped_environment(checkout)
    started = time.monotonic()
    done = shell(checkout, "_duets_install_locked() { echo INSTALLING; }; duets_install", PYTHON="/nowhere/python")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("change", ["setup.py", "examples/install.sh", "place"])
def test_a_changed_source_or_place_installs_again(checkout, tmp_path, change):
    stamped_environment(checkout)
    if change == "place":
        checkout = checkout.rename(tmp_path / "moved")
    else:
        (checkout / change).write_text((checkout / change).read_text() + "\n# changed\n")
    assert "INSTALLING" in shell(checkout, "_duets_install_locked() { echo INSTALLING; }; duets_install").stdout


def test_an_interrupted_installation_starts_from_nothing(checkout):
    stamped_environment(checkout)
    (checkout / ".venv" / ".verl-duets-unfinished").touch()
    (checkout / ".venv" / "half-unpacked").touch()
    done = shell(checkout, '_duets_is_installed && echo INSTALLED; _duets_make_venv "$PYTHON"')
    assert done.returncode == 0, done.stderr
    assert "INSTALLED" not in done.stdout and "interrupted" in done.stdout
    assert not (checkout / ".venv" / "half-unpacked").exists()
    assert (checkout / ".venv" / "bin" / "python").exists()


def test_someone_elses_folder_is_not_removed(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "thesis.txt").touch()
    done = shell(checkout, "duets_install")
    assert done.returncode == 1
    assert "no working virtual environment" in one_sentence(done)
    assert (checkout / ".venv" / "thesis.txt").exists()


def test_two_installations_take_turns(checkout):
    # Each writes its number twice with a pause between: turns keep the pairs together.
    code = """
        _duets_install_locked() { echo $BASHPID >>"$DUETS_ROOT/turns"; sleep 1; echo $BASHPID >>"$DUETS_ROOT/turns"; }
        duets_install & duets_install & wait
    """
    both = [
        subprocess.Popen(
            ["bash", "-c", f'source "$1/examples/install.sh"\n{textwrap.dedent(code)}', "bash", str(checkout)],
            env={**os.environ, "PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [one.communicate(timeout=100)[0] for one in both]
    turns = (checkout / "turns").read_text().split()
    assert len(turns) == 8
    assert all(turns[i] == turns[i + 1] for i in range(0, 8, 2))
    assert any("waiting for it" in output for output in outputs)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("ERROR: [Errno 28] No space left on device", "the disk is full"),
        (
            "NewConnectionError('<pip>: Failed to establish a new connection: [Errno 111] Connection refused')",
            "cannot be reached",
        ),
        (
            "ERROR: No matching distribution found for verl<0.10,>=0.9",
            "No matching distribution found for verl<0.10,>=0.9",
        ),
        ("something new", "pip failed"),
    ],
)
def test_pip_failures_become_one_sentence(checkout, log, reason):
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "install.log").write_text(log + "\n")
    done = shell(checkout, '_duets_explain_pip "torch"')
    assert done.returncode == 1
    assert reason in one_sentence(done)


def test_no_network_ends_in_one_sentence(checkout):
    # A port that is taken and where nobody listens stands for an index that cannot be reached.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        nowhere = {"PIP_INDEX_URL": index, "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
        nowhere |= {"PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
        done = shell(checkout, "duets_install", **nowhere)
    assert done.returncode == 1
    assert "torch 2.13.0 could not be installed: the package index cannot be reached" in done.stderr.splitlines()[-1]
    assert (checkout / ".venv" / ".verl-duets-unfinished").exists()


@pytest.mark.parametrize(
    ("argument", "environment", "message"),
    [
        ("spo", {}, "there is no recipe 'spo'; there are: sppo."),
        ("sppo", {"STEPS": "many"}, "STEPS=many is no whole number"),
        ("sppo", {"SEED": "-1"}, "SEED=-1 is no whole number"),
    ],
)
def test_quickstart_names_what_it_refuses(checkout, argument, environment, message):
    command, environment = ["bash", str(checkout / "examples" / "quickstart.sh"), argument], os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2
    assert message in one_sentence(done)


@pytest.mark.parametrize(("faster", "options", "told"), [(0, [], True), (1, [], False), (0, ["--toy"], False)])
def test_a_processor_without_bfloat16_is_told_of_before_the_start(checkout, tmp_path, faster, options, told):
    program(tmp_path / "bin", "python", f'[[ "$1" == -c ]] && exit {faster}; echo made a world; exit 3')
    environment = os.environ | {"USE_PYTHON": str(tmp_path / "bin" / "python"), "OUT": str(tmp_path / "out")}
    command = ["bash", str(checkout / "examples" / "quickstart.sh"), *options, "sppo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, "expect an hour" in done.stdout.partition("made a world")[0]) == (1, told)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_whole_installation(tmp_path):
    folder = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", str(folder / "examples" / "install.sh")]
    first = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, timeout=2000)
    assert first.returncode == 0, first.stdout + first.stderr
    again = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, timeout=60)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
