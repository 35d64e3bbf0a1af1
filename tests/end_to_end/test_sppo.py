"""SPPO as a user runs it, with rewards that fail: train, save, be killed, resume, export; and what a lost sync is."""

import contextlib
import json
import signal
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
SAVE = "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"
# So that a step moves what a rollout engine would say by more than the guard lets pass.
FAST = ("actor_rollout_ref.actor.optim.lr=1e-3", "actor_rollout_ref.actor.optim.lr_warmup_steps=0")
SIZES = (
    "preset=paper",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=40",
)
FAULTY = (
    f"reward.custom_reward_function.path={HERE / 'faulty_rewards.py'}",
    "algorithm.reward_faults.time_limit=1",
    "algorithm.reward_faults.skip_share=0.5",
)


def recorded(path: Path) -> list[dict]:
    """The steps that the recording trainer has written; one that was being written is left out."""
    steps = []
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            steps.append(json.loads(line))
    return steps


def check_targets(step: dict) -> None:
    """What failed is not trained on, and of the rest each response's target is its win rate minus one half."""
    skipped = {key for key, row in step["seen"].items() if row["reward"] is None}
    assert skipped and not skipped & step["trained"].keys()
    groups = defaultdict(list)
    for row in step["trained"].values():
        groups[row["uid"]].append(row)
    for rows in groups.values():
        rewards = torch.tensor([row["reward"] for row in rows])
        expected = (torch.sign(rewards[:, None] - rewards).mean(1) + 1) / 2 - 0.5
        assert torch.allclose(torch.tensor([row["advantage"] for row in rows]), expected, atol=1e-4)


@pytest.mark.timeout(1500)
def test_train_on_faulty_rewards_save_kill_resume_export_and_lose_a_sync(start, small, tmp_path):
    """One sample in ten fails; SIGUSR1 saves a step between the checkpoints, SIGKILL of the driver comes after it.

    The run that resumes sends its engines nothing after step 2, which ends it: the negative control of the guard.
    """
    arguments = [*small, *FAST, *SIZES, SAVE, "trainer.total_training_steps=9"]
    arguments += ["trainer.v1.trainer_mode=recording"]
    environment = {"VERL_USE_EXTERNAL_MODULES": "recording_trainer", "PYTHONPATH": str(HERE)}

    records = tmp_path / "records"
    first = start("recipes.sppo.main", *arguments, *FAULTY, environment=environment | {"RECORD_TO": str(records)})
    first.wait_for_step(1)
    first.process.send_signal(signal.SIGUSR1)
    first.wait_for_text("is saved, as asked")
    checkpoints = first.folder / "outputs" / "checkpoints"
    (folder,) = checkpoints.glob("*/*/global_step_*")
    saved = int(folder.name.removeprefix("global_step_"))
    assert saved in (1, 2)
    first.wait_for_step(saved + 1)
    before = first.metrics()
    first.kill()
    steps = recorded(records)
    assert {1, saved + 1} <= {step["step"] for step in steps}
    for step in steps:
        check_targets(step)
    totals = sum((Counter(step) for step in before.values()), Counter())
    for fault in ("skip/raised_RuntimeError", "skip/not_finite", "score/time_out", "score/crash"):
        assert totals[f"reward_faults/{fault}"] > 0, fault

    second = start("recipes.sppo.main", *arguments, "trainer.save_freq=3", environment=environment | {"LAST_SYNC": "2"})
    assert second.wait() == 1, second.log[-6000:]
    assert "rollout and actor disagree about the responses' tokens" in second.log
    metrics = second.metrics()
    assert all(metrics[step] == before[step] for step in range(1, saved + 1)), "the curve before the kill is kept"
    assert f"setting global step to {saved}" in second.log
    difference = {step: data["training/rollout_probs_diff_mean"] for step, data in metrics.items()}
    assert all(difference[step] < 1e-5 for step in range(1, 4)) and difference[4] > 1e-3
    assert max(difference) < 6, "two steps with the wrong weights are enough"
    assert all(data["actor/grad_norm"] > 0 for data in metrics.values())
    (exported,) = checkpoints.glob("*/*/global_step_3/actor/huggingface")
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(exported).num_parameters() > 0
    from recipes.launch import leftovers

    assert leftovers.dead_runs() == []


@pytest.mark.long
def test_a_finished_run_trains_nothing_more(start, small):
    arguments = [*small, "preset=grpo", "trainer.save_freq=2", "trainer.total_training_steps=2"]
    assert start("recipes.sppo.main", *arguments).wait() == 0
    again = start("recipes.sppo.main", *arguments)
    assert again.wait(120) == 0
    assert "nothing is left to train" in again.log
    faster = start("recipes.sppo.main", *arguments, "actor_rollout_ref.actor.optim.lr=0.1")
    assert faster.wait(120) == 2 and "actor_rollout_ref.actor.optim.lr was 0.0005 in" in faster.log


@pytest.mark.long
def test_beyond_the_budget_of_skips_the_run_stops_with_the_reason(start, small):
    run = start(
        "recipes.sppo.main",
        *small,
        *FAULTY,
        "preset=grpo",
        "trainer.total_training_steps=2",
        "reward.custom_reward_function.name=always_raises",
    )
    assert run.wait() == 1, run.log[-6000:]
    assert "256 of 256 samples could not be judged" in run.log
    assert "the endpoint is down" in run.log
    assert run.metrics() == {}
