"""SPPO as a user runs it: train, be killed, resume, export; and what a lost weight sync looks like."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2700)]
HERE = str(Path(__file__).parent)
SAVE = "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"


def test_train_kill_resume_export(start, small):
    arguments = [*small, "preset=paper", "actor_rollout_ref.actor.ppo_mini_batch_size=32"]
    arguments += ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40", "trainer.save_freq=2", SAVE]
    arguments += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=40", "trainer.total_training_steps=4"]
    first = start("recipes.sppo.main", *arguments)
    first.wait_for_step(3)
    before = first.metrics()
    first.kill()
    second = start("recipes.sppo.main", *arguments)
    assert second.wait() == 0, second.log[-6000:]
    metrics = second.metrics()
    assert sorted(metrics) == [1, 2, 3, 4]
    assert metrics[1] == before[1] and metrics[2] == before[2], "the curve before the kill is kept"
    assert "setting global step to 2" in second.log
    for step in metrics.values():
        assert step["training/rollout_probs_diff_mean"] < 1e-5
        assert step["actor/grad_norm"] > 0
    checkpoints = second.folder / "outputs" / "checkpoints"
    (exported,) = checkpoints.glob("*/*/global_step_4/actor/huggingface")
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(exported).num_parameters() > 0
    from recipes.lifecycle import leftovers

    assert leftovers.dead_runs() == []
    third = start("recipes.sppo.main", *arguments)
    assert third.wait(120) == 0
    assert "nothing is left to train" in third.log


@pytest.mark.long
def test_a_dropped_weight_sync_ends_the_run(start, small):
    """The negative control of the agreement between rollout and actor, and of the guard that watches it."""
    run = start(
        "recipes.sppo.main",
        *small,
        "preset=grpo",
        "trainer.v1.trainer_mode=forgetful",
        "trainer.total_training_steps=5",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
        environment={"VERL_USE_EXTERNAL_MODULES": "recording_trainer", "PYTHONPATH": HERE},
    )
    assert run.wait() == 1, run.log[-6000:]
    assert "rollout and actor disagree about the responses' tokens" in run.log
    difference = {step: data["training/rollout_probs_diff_mean"] for step, data in run.metrics().items()}
    assert difference[1] < 1e-5 and difference[2] > 1e-3
    assert max(difference) < 4, "two steps with the wrong weights are enough"
