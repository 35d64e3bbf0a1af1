"""Adapters (LoRA) as a user trains them: every recipe on the toy world, and syncs that lose them."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]
HERE = str(Path(__file__).parent)
ADAPTERS = (
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.model.lora_alpha=16",
    "actor_rollout_ref.rollout.load_format=auto",
    "actor_rollout_ref.actor.optim.lr=5e-3",
)
TWO_STEPS = (
    "scale=toy",
    "trainer.total_training_steps=2",
    "data.val_max_samples=32",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
)
ROWS_OF_32 = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32",
)
SIXTEEN = ("data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=8", *ROWS_OF_32)
WARM = "actor_rollout_ref.actor.optim.lr_warmup_steps=0"
RECIPES = {
    "sppo": (*SIXTEEN, WARM, "preset=grpo"),
    "tandem": (*SIXTEEN, WARM, "actor_rollout_ref.rollout.n=4"),
    "serl": (
        *SIXTEEN,
        WARM,
        "data.train_batch_size=8",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "serl.limits.max_rounds=3",
    ),
    "pasodoble": ("pasodoble.rounds_per_step=5",),
    "step_ppo": (
        *SIXTEEN,
        WARM,
        "preset=outcome",
        "critic.model.lora_rank=8",
        "critic.model.path=${actor_rollout_ref.model.path}",
    ),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_adapters_train_and_the_engine_follows(start, world, recipe):
    environment = {"TOY_DIR": str(world(recipe))}
    run = start(f"recipes.{recipe}.main", *TWO_STEPS, *ADAPTERS, *RECIPES[recipe], environment=environment)
    assert run.wait() == 0, run.log[-6000:]
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2]
    found = [
        (name, value)
        for step in metrics.values()
        for name, value in step.items()
        if name.endswith("training/rollout_probs_diff_mean")
    ]
    assert found and all(value < 1e-5 for _, value in found), found
    trained = [value for step in metrics.values() for name, value in step.items() if name.endswith("actor/grad_norm")]
    assert trained and max(trained) > 0
    assert ("one set of weights serves both models" in run.log) is (recipe == "tandem")


def test_an_adapter_that_the_engine_drops_ends_the_run(start, world):
    """vLLM accepts every adapter and keeps the one it had."""
    run = start(
        "recipes.sppo.main",
        *TWO_STEPS,
        *ADAPTERS,
        *RECIPES["sppo"],
        "trainer.total_training_steps=5",
        environment={
            "TOY_DIR": str(world("sppo")),
            "VERL_USE_EXTERNAL_MODULES": "dropped_adapter",
            "PYTHONPATH": HERE,
        },
    )
    assert run.wait() == 1, run.log[-6000:]
    assert "own parameters have not changed" in run.log
