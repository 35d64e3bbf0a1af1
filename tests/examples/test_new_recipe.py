"""The skeleton of a recipe in a copy of the packages: written, tested, composed, and trained for two steps."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "new_recipe" / "new_recipe.py"
PACKAGES = ("recipes", "reward_fns", "vllm_patches", "tests/architecture")

_spec = importlib.util.spec_from_file_location("new_recipe", SCRIPT)
new_recipe = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(new_recipe)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the packages with a recipe called `half_and_half` in it."""
    root = tmp_path_factory.mktemp("checkout")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    shutil.copy(ROOT / "tests" / "conftest.py", root / "tests")
    shutil.copy(ROOT / "pyproject.toml", root)
    new_recipe.write_recipe("half_and_half", root)
    return root


def run(checkout, *command, seconds=280, **variables):
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
    environment = cleared | {"PYTHONPATH": str(checkout), "CUDA_VISIBLE_DEVICES": ""} | variables
    return subprocess.run(
        [sys.executable, *command], cwd=checkout, env=environment, capture_output=True, text=True, timeout=seconds
    )


def test_its_formula_passes_its_test_and_its_modules_keep_the_walls(checkout):
    walls = "tests/architecture/test_walls.py"
    done = run(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/recipes/half_and_half", walls)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_setting_the_method_cannot_run_with_is_refused(checkout, tmp_path):
    arguments = ("scale=toy", "actor_rollout_ref.rollout.n=1", "--dry-run")
    done = run(checkout, "-m", "recipes.half_and_half.main", *arguments)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("half_and_half: actor_rollout_ref.rollout.n=1 leaves no")


@pytest.mark.parametrize(("name", "reason"), [("Not-A-Name", "no module name"), ("sppo", "there already")])
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(checkout, name, reason):
    before = (checkout / "recipes" / "plugin.py").read_text()
    with pytest.raises(new_recipe.RefusedError, match=reason):
        new_recipe.write_recipe(name, checkout)
    assert (checkout / "recipes" / "plugin.py").read_text() == before


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(900)
def test_it_trains_for_two_steps(checkout, tmp_path):
    world = ROOT / "outputs" / "toy"
    make = [sys.executable, str(ROOT / "examples" / "toy" / "make.py"), "--out", str(world), "--seed", "0"]
    subprocess.run(make, check=True, timeout=600, stdout=subprocess.DEVNULL)
    small = (
        "scale=toy",
        "data.train_batch_size=16",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "trainer.total_training_steps=2",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
    )
    metrics = tmp_path / "metrics.jsonl"
    places = {"TOY_DIR": str(world), "VERL_FILE_LOGGER_PATH": str(metrics), "XDG_STATE_HOME": str(tmp_path)}
    done = run(checkout, "-m", "recipes.half_and_half.main", *small, seconds=800, **places)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert {record["step"] for record in records} == {1, 2}
    last = {key: value for record in records if record["step"] == 2 for key, value in record["data"].items()}
    assert last["actor/grad_norm"] > 0
