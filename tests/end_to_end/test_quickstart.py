"""`STEPS=2 bash examples/quickstart.sh [--toy] RECIPE` of every recipe, to its last line; one as a notebook has it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.step_ppo.pipeline.records import read

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = sorted(path.parents[2].name for path in REPOSITORY.glob("recipes/*/config/scale/toy.yaml"))
# The others train to their end in tests of their own.
IN_CI = ("pasodoble",)
# Steps of a few seconds; PasoDoble's size is its rounds, SPPO's steps are short as they are.
FEW_PROMPTS = "data.train_batch_size=16 actor_rollout_ref.actor.ppo_mini_batch_size=16"
SMALLER = {"pasodoble": "pasodoble.rounds_per_step=5", "serl": "", "sppo": ""}
# The smallest pipeline that still has questions with right and wrong trajectories, for pairs and both classes of state.
SMALLEST = {"QUESTIONS": "48", "PRM_QUESTIONS": "32", "DEV_QUESTIONS": "8", "TRUTH": "2", "DPO_UPDATES": "2"}
# Half of the time of two steps would go into the answers to 500 problems, before and after.
FEW = "40"
HANGS_AFTER = 550.0


@pytest.fixture
def quickstart(tmp_path):
    """Run the command for a recipe in the present environment; gives what it printed and its folder of results."""
    running: list[subprocess.Popen] = []

    def run(recipe: str, *options: str, limit: float = HANGS_AFTER, **knobs: str) -> tuple[str, Path]:
        cleared = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
        own = {"STEPS": "2", "HELD_OUT": FEW, "OUT": str(tmp_path / "out"), "USE_PYTHON": sys.executable}
        own |= {"XDG_STATE_HOME": str(tmp_path / "state")}
        own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        command = ["bash", "examples/quickstart.sh", *options, recipe]
        if recipe in IN_CI and options:
            # The notebook as a script, which calls the same command.
            command, own = [sys.executable, "examples/first_steps.py"], own | {"TOY": "1", "RECIPE": recipe}
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=cleared | own | knobs,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        running.append(process)
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as hang:
            raise AssertionError(f"no end after {limit:.0f} s\n{(hang.output or b'')[-6000:]}") from None
        assert process.returncode == 0, output[-6000:]
        return output, tmp_path / "out" / recipe

    yield run
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def steps_of(metrics: Path) -> list[int]:
    return sorted({json.loads(line)["step"] for line in metrics.read_text().splitlines()})


def learnt_from_its_own_samples(metrics: Path, most: float = 1e-5) -> None:
    """Every policy of a run (PasoDoble has two) was updated, and its rollouts were sampled from what was updated."""
    seen: dict[str, list[float]] = {}
    for line in metrics.read_text().splitlines():
        for key, value in json.loads(line)["data"].items():
            seen.setdefault(key, []).append(value)
    differences = [key for key in seen if key.endswith("training/rollout_probs_diff_mean")]
    assert differences
    for key in differences:
        role = key.removesuffix("training/rollout_probs_diff_mean")
        assert max(seen[key]) < most, key
        assert min(seen[f"{role}actor/grad_norm"]) > 0, role


def ends_with_the_report(output: str) -> None:
    """Accuracy before and after, and a question with its answers."""
    lines = output.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("held-out accuracy"))
    assert lines[start + 3].strip().startswith("change"), output[-2000:]
    assert "step    2" in lines[start + 2] and lines[start + 2].endswith(f"n = {FEW}")
    assert any(line.startswith("one question: ") for line in lines[start:]) and "  after   " in output


@pytest.mark.parametrize(
    "recipe",
    [name if name in IN_CI else pytest.param(name, marks=pytest.mark.long) for name in RECIPES if name != "step_ppo"],
)
def test_two_steps_to_the_last_line(recipe, quickstart):
    output, folder = quickstart(recipe, "--toy", MORE=SMALLER.get(recipe, FEW_PROMPTS))
    assert steps_of(folder / "metrics.jsonl") == [0, 1, 2]
    learnt_from_its_own_samples(folder / "metrics.jsonl")
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    ends_with_the_report(output)


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_steps_of_a_real_model(recipe, quickstart):
    """SmolLM2-135M, fetched and started by the command; in bfloat16 the probabilities differ by a hundredth."""
    output, folder = quickstart(recipe, limit=2300)
    assert steps_of(folder / "metrics.jsonl") == [0, 1, 2]
    learnt_from_its_own_samples(folder / "metrics.jsonl", most=0.02)
    ends_with_the_report(output)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("arms", ["step_ppo", "step_ppo outcome_ppo"])
def test_the_pipeline_of_step_ppo(quickstart, arms):
    """Every stage, from trajectories to PPO and the report; and states are continued where the policy was."""
    pytest.importorskip("trl")
    _, folder = quickstart("step_ppo", "--toy", ARMS=arms, MORE=FEW_PROMPTS, **SMALLEST)
    report = (folder / "report" / "report.md").read_text()
    for arm in arms.split():
        assert steps_of(folder / arm / "metrics.jsonl") == [0, 1, 2]
        learnt_from_its_own_samples(folder / arm / "metrics.jsonl")
        assert arm.replace("_ppo", "-PPO") in report
    assert (folder / "report" / "calibration.png").is_file()

    def records(name: str) -> list[dict]:
        return list(read([folder / "round0" / name]))

    right = [response["correct"] for record in records("prm_trajectories.jsonl") for response in record["responses"]]
    values = [r["value"] for r in records("values.jsonl") if r["step"] == 0 and r["value"] is not None]
    assert len(values) > 30
    # Both are near one half; states cut where the policy never was have a mean of almost 0.
    assert abs(sum(values) / (3 * len(values)) - sum(right) / len(right)) < 0.25
