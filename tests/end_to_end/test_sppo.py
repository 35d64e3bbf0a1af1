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
FAULTY = (f"reward.custom_reward_function.path={HERE / 'faulty_rewards.py'}", "algorithm.reward_faults.time_limit=1")


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


@pytest.fixture
def begin(start, small):
    """Start SPPO with steps that move the policy fast, and with the trainers of this folder."""

    def begin(*arguments: str, **more: str):
        environment = {"VERL_USE_EXTERNAL_MODULES": "recording_trainer", "PYTHONPATH": str(HERE)} | more
        return start("recipes.sppo.main", *small, *FAST, *SIZES, *arguments, environment=environment)

    return begin


def test_train_on_faulty_rewards_save_kill_resume_export(begin, tmp_path):
    """One sample in ten fails; SIGUSR1 saves a step between the checkpoints, SIGKILL of the driver comes after it."""
    arguments = [*FAULTY, "algorithm.reward_faults.skip_share=0.5", "trainer.v1.trainer_mode=recording"]
    arguments += ["trainer.save_freq=4", "trainer.total_training_steps=4", SAVE]

    first = begin(*arguments, RECORD_TO=str(tmp_path / "first"))
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

    second = begin(*arguments, RECORD_TO=str(tmp_path / "second"))
    assert second.wait() == 0, second.log[-6000:]
    metrics = second.metrics()
    assert sorted(metrics) == [1, 2, 3, 4]
    assert all(metrics[step] == before[step] for step in range(1, saved + 1)), "the curve before the kill is kept"
    assert f"setting global step to {saved}" in second.log
    for step in metrics.values():
        assert step["training/rollout_probs_diff_mean"] < 1e-5
        assert step["actor/grad_norm"] > 0
    (exported,) = checkpoints.glob("*/*/global_step_4/actor/huggingface")
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(exported).num_parameters() > 0
    from recipes.launch import leftovers

    assert leftovers.dead_runs() == []

    steps = recorded(tmp_path / "first") + recorded(tmp_path / "second")
    assert {step["step"] for step in steps} == {1, 2, 3, 4}
    for step in steps:
        check_targets(step)
    totals = sum((Counter(step) for step in metrics.values()), Counter())
    for fault in ("skip/raised_RuntimeError", "skip/not_finite", "score/time_out", "score/crash"):
        assert totals[f"reward_faults/{fault}"] > 0, fault


@pytest.mark.long
def test_a_finished_run_trains_nothing_and_one_that_loses_its_syncs_ends(begin):
    """The negative control of the guard: a trainer that drops its weight syncs from step 5 on."""
    assert begin("trainer.save_freq=4", "trainer.total_training_steps=4").wait() == 0
    again = begin("trainer.save_freq=4", "trainer.total_training_steps=4")
    assert again.wait(120) == 0
    assert "nothing is left to train" in again.log

    forgetful = begin("trainer.v1.trainer_mode=forgetful", "trainer.total_training_steps=9")
    assert forgetful.wait() == 1, forgetful.log[-6000:]
    assert "rollout and actor disagree about the responses' tokens" in forgetful.log
    difference = {step: data["training/rollout_probs_diff_mean"] for step, data in forgetful.metrics().items()}
    assert difference[5] < 1e-5 and difference[6] > 1e-3
    assert max(difference) < 8, "two steps with the wrong weights are enough"


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
