"""SPPO as a user runs it: train, be killed, resume, export; and what a lost weight sync looks like."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
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


QUIET = ("trainer.val_before_train=false", "trainer.test_freq=-1")


@pytest.mark.long
def test_the_paper_preset_trains_with_its_own_sizes(start):
    run = start("recipes.sppo.main", "scale=toy", "preset=paper", *QUIET, "trainer.total_training_steps=2")
    assert run.wait(800) == 0, run.log[-6000:]
    assert sorted(run.metrics()) == [1, 2]
    for step in run.metrics().values():
        assert step["training/rollout_probs_diff_mean"] < 1e-5
        assert abs(step["actor/sppo_target_mean"]) < 0.05, "win rates average 1/2 in each group"


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_an_iteration_trains_from_its_first_update_and_resumes(start):
    optimizer = "actor_rollout_ref.actor.optim.override_optimizer_config"
    sizes = ["data.train_batch_size=128", f"{optimizer}.updates_per_iteration=2", "trainer.save_freq=1"]
    arguments = ["scale=toy", "preset=iterative", *sizes, *QUIET]
    first = start("recipes.sppo.main", *arguments, "trainer.total_training_steps=1")
    assert first.wait(700) == 0, first.log[-6000:]
    second = start("recipes.sppo.main", *arguments, "trainer.total_training_steps=2")
    assert second.wait(700) == 0, second.log[-6000:]
    assert "setting global step to 1" in second.log
    steps = second.metrics()
    assert sorted(steps) == [1, 2]
    # the second of an iteration's two mini-batches sees a policy that the first has moved
    assert all(step["actor/sppo_log_ratio_std"] > 0 for step in steps.values())
    # targets are +-eta * (P_hat - 1/2); one is left per prompt that its responses tie
    assert all(step["actor/sppo_target_std"] > 10 for step in steps.values())


def test_a_dropped_weight_sync_is_seen(start, small):
    """The negative control of the agreement between rollout and actor."""
    run = start(
        "recipes.sppo.main",
        *small,
        "preset=grpo",
        "trainer.v1.trainer_mode=forgetful",
        "trainer.total_training_steps=3",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
        environment={"VERL_USE_EXTERNAL_MODULES": "recording_trainer", "PYTHONPATH": HERE},
    )
    assert run.wait() == 0, run.log[-6000:]
    difference = {step: data["training/rollout_probs_diff_mean"] for step, data in run.metrics().items()}
    assert difference[1] < 1e-5
    assert difference[2] > 1e-3 and difference[3] > 1e-3
