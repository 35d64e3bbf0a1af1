"""SeRL as a user runs it: the model writes problems, votes, trains, is killed in the middle of a step, and goes on."""

import contextlib
import json
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import psutil
import pytest

from recipes.core.state import load

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]
SMALL = (
    "scale=toy",
    "data.train_batch_size=8",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32",
    "serl.limits.max_rounds=3",
    "data.val_max_samples=32",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
)


@pytest.fixture
def serl_world(world) -> Path:
    """The toy world whose model writes problems."""
    return world("serl")


@pytest.fixture
def begin(start, serl_world):
    def begin(*overrides: str):
        return start("recipes.serl.main", *SMALL, *overrides, environment={"TOY_DIR": str(serl_world)})

    return begin


def journal(folder: Path) -> dict[tuple[str, int], list[dict]]:
    """All records by kind and step; what a resumed run set aside is in folders of its own."""
    (found,) = (folder / "outputs" / "checkpoints").glob("*/*/filtered_data")
    records = {}
    for path in found.glob("*.jsonl"):
        kind, step = re.fullmatch(r"(\w+)_(\d+)\.jsonl", path.name).groups()
        records[kind, int(step)] = [json.loads(line) for line in path.read_text().splitlines()]
    return records


def generated(folder: Path, step: int) -> dict[int, str]:
    """Text of every numbered instruction that a step's journals know; a line that was being written is left out."""
    lines = [line for path in folder.glob(f"*_{step}.jsonl") for line in path.read_text().split("\n")[:-1]]
    return {record["idx"]: record["prompt"] for record in map(json.loads, lines) if record["idx"] is not None}


def kill_in_step(run, step: int, seconds: float = 1200.0) -> dict[int, str]:
    """SIGKILL of every process of the run once a step has judged its first groups; the instructions it had by then."""
    deadline = time.monotonic() + seconds
    experiment = "serl_self_instruct_reinforce_pp_toy"
    folder = run.folder / "outputs" / "checkpoints" / "verl-duets" / experiment / "filtered_data"
    while not generated(folder, step):
        assert run.process.poll() is None, run.log[-6000:]
        assert time.monotonic() < deadline, run.log[-6000:]
        time.sleep(0.02)
    for process in [psutil.Process(run.process.pid), *run.descendants()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    run.process.wait()
    return generated(folder, step)


def check_books(folder: Path, step: int) -> dict:
    """Journals and the checkpoint's counters tell the same story; returns the checkpoint's state."""
    (path,) = (folder / "outputs" / "checkpoints").glob(f"*/*/global_step_{step}/serl.json")
    state, records = load(path), journal(folder)
    fates = Counter(r["idx"] for rows in records.values() for r in rows if r["idx"] is not None)
    assert set(fates) == set(range(state["source"]["next_idx"])) and set(fates.values()) == {1}
    trained = [r for (kind, _), rows in records.items() if kind == "keep_train_data" for r in rows]
    left_over = [r for rows in records.values() for r in rows if r.get("reason") == "left_over"]
    assert state["trained_prompts"] == len(trained)
    survivors = Counter(r["prompt"] for r in [*trained, *left_over] if r["origin"] == "generated")
    assert Counter(state["source"]["few_shot"]) == survivors
    assert all(0.2 <= r["agreement"] <= 0.8 for r in trained)
    assert state["journal"] == {p.name: p.stat().st_size for p in path.parents[1].glob("filtered_data/*.jsonl")}
    return state


TWENTY = ("serl.instructions_num_per_iteration=20", "serl.step_slack=2", "trainer.save_freq=1", "trainer.test_freq=100")
"""Three steps train the 20 prompts of the iteration or, where votes fall short, up to six do."""


def check_end_of_twenty(run) -> int:
    """The run ends when its prompts are trained; its last step."""
    assert run.wait() == 0, run.log[-6000:]
    metrics = run.metrics()
    last = max(metrics)
    assert sorted(metrics) == list(range(1, last + 1))
    for step, data in metrics.items():
        assert data["training/rollout_probs_diff_mean"] < 1e-5
        assert data["serl/instructions/parsed"] > 0 and data["serl/instructions/accepted"] > 0
        assert data["actor/grad_norm"] > 0 or data["serl/groups_trained"] == 0, step
        assert data["actor/ppo_kl"] < 0.1 or data["serl/groups_trained"] == 0
    state = check_books(run.folder, last)
    assert state["trained_prompts"] >= 20 or last == 6
    assert f"serl: ended after {state['trained_prompts']} trained prompts, at step {last}" in run.log
    assert any("acc/mean@1" in key for key in metrics[last]), "validated at the end, whenever that came"
    return last


def test_train_until_the_prompts_are_trained(begin):
    check_end_of_twenty(begin(*TWENTY))


@pytest.mark.long
def test_killed_in_a_step_it_resumes(begin):
    first = begin(*TWENTY)
    killed = kill_in_step(first, 2)
    before = first.metrics()
    second = begin(*TWENTY)
    check_end_of_twenty(second)
    assert "setting global step to 1" in second.log
    assert second.metrics()[1] == before[1]
    # Weights, examples and seeds of step 2 are those of the checkpoint, so the same instructions come again.
    (folder,) = (second.folder / "outputs" / "checkpoints").glob("*/*/filtered_data")
    assert killed and killed.items() <= generated(folder, 2).items()


@pytest.mark.long
def test_ten_unlabelled_rows_train_to_their_end(begin, serl_world, tmp_path):
    """Fewer rows than a batch: three epochs are two rounds, of 16 and 14 prompts, and nothing is said of labels."""
    table = pd.read_parquet(serl_world / "train.parquet").head(10)
    table["reward_model"] = [row | {"ground_truth": ""} for row in table["reward_model"]]
    table.to_parquet(tmp_path / "ten.parquet")
    data = f"{tmp_path / 'ten.parquet'}"
    arguments = ["variant=majority", f"data.train_files={data}", f"data.val_files={data}", "data.train_batch_size=16"]
    run = begin(*arguments, "trainer.total_epochs=3", "trainer.val_before_train=true", "serl.limits.max_rounds=1")
    assert run.wait() == 0, run.log[-6000:]
    metrics = run.metrics()
    assert sorted(metrics) == [0, 1, 2], "validated before, then two rounds"
    steps = [metrics[step] for step in (1, 2)]
    assert all(0 < step["serl/groups"] + step.get("serl/unusable/vote_tie", 0) <= 16 for step in steps)
    assert sum(step["serl/groups_trained"] for step in steps) > 0
    for data in metrics.values():
        assert not any("label" in name or "/acc/" in name or "/reward/" in name for name in data), data
    for step in steps:
        assert step["actor/grad_norm"] > 0 or step["serl/groups_trained"] == 0
    records = journal(run.folder)
    assert {kind for kind, _ in records} <= {"filtered_data", "keep_train_data", "expired_data"}


@pytest.mark.long
def test_rollouts_on_devices_of_their_own_have_the_weights_of_the_last_step(begin):
    """Actor and reference train on one device, the engine generates on another; weights cross over gloo."""
    run = begin("resources=split", "trainer.total_training_steps=3", "trainer.test_freq=3", "trainer.save_freq=3")
    assert run.wait() == 0, run.log[-6000:]
    assert "'backend': 'gloo'" in run.log
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2, 3]
    for step, data in metrics.items():
        # The engine starts with random weights, and each step but a skipped one changes those it was sent.
        assert data["training/rollout_probs_diff_mean"] < 1e-5, step
        assert data["actor/grad_norm"] > 0 or data["serl/groups_trained"] == 0, step
    assert any("acc/mean@1" in key for key in metrics[3])
    trained = check_books(run.folder, 3)["trained_prompts"]
    assert trained == sum(data["serl/groups_trained"] for data in metrics.values()) > 0
