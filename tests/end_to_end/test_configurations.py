"""Two real steps of every configuration that `scale=toy` has, with bounds on what the steps report.

A bound names a metric, how it is taken over the steps (`min`, `max` or `last`), and the range it must lie in.
"""

import math
import os
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]
REPOSITORY = Path(__file__).resolve().parents[2]
TAKEN = {"min": min, "max": max, "last": lambda values: values[-1]}
TWO_STEPS = ("scale=toy", "trainer.total_training_steps=2", "trainer.save_freq=-1", "trainer.val_before_train=false")
VALIDATED = ("data.val_max_samples=32", "trainer.test_freq=2")
TANDEM_CONFIG = "actor_rollout_ref.rollout.engine_kwargs.vllm.tandem_config"
FEWER = ("data.train_batch_size=32", "actor_rollout_ref.actor.ppo_mini_batch_size=16")

ITERATION = (
    "data.train_batch_size=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.optim.override_optimizer_config.updates_per_iteration=2",
)


class Bound(NamedTuple):
    """`low <= taken over the steps of `metric` <= high`."""

    metric: str
    taken: str
    low: float
    high: float


def near(metric: str, value: float, tolerance: float) -> tuple[Bound, Bound]:
    """The metric is `value` in every step, to `tolerance`."""
    return Bound(metric, "min", value - tolerance, math.inf), Bound(metric, "max", -math.inf, value + tolerance)


def positive(metric: str) -> Bound:
    return Bound(metric, "min", 1e-12, math.inf)


# The rollout engine samples from the policy that is trained, which moves.
EVERY = (Bound("training/rollout_probs_diff_mean", "max", 0.0, 1e-5), positive("actor/grad_norm"))
SHARE = (Bound("critic/score/mean", "min", 0.0, 1.0), Bound("critic/score/mean", "max", 0.0, 1.0))
TANDEM = (
    *EVERY,
    *SHARE,
    Bound("tandem/senior_token_share", "min", 0.3, 0.7),
    Bound("tandem/senior_token_share", "max", 0.3, 0.7),
    positive("tandem/switches_per_response"),
)
SERL = (*EVERY, positive("serl/groups_trained"), Bound("serl/skipped_steps", "last", 0, 0))
ROLES = tuple(bound._replace(metric=f"{role}/{bound.metric}") for role in ("solver", "proposer") for bound in EVERY)
STEP_PPO = (*EVERY, Bound("reward_faults/skipped_share", "max", 0, 0), Bound("step_ppo/steps/mean", "min", 2, 40))
CRITIC = (positive("critic/grad_norm"),)

CONFIGURATIONS: dict[str, tuple[str, tuple[str, ...], tuple[Bound, ...]]] = {
    "sppo, verl": ("sppo", ("preset=verl",), (*EVERY, *SHARE)),
    "sppo, grpo": ("sppo", ("preset=grpo", *FEWER), (*EVERY, *SHARE)),
    "sppo, paper": ("sppo", ("preset=paper",), (*EVERY, *SHARE)),
    "sppo, iterative": ("sppo", ("preset=iterative", *ITERATION), (*EVERY, *SHARE)),
    "tandem, lock step": ("tandem", ("preset=tandem", *FEWER, f"{TANDEM_CONFIG}.mode=lock_step"), TANDEM),
    "tandem, lazy": ("tandem", ("preset=tandem", *FEWER, f"{TANDEM_CONFIG}.mode=lazy"), TANDEM),
    "tandem, speculative": (
        "tandem",
        ("preset=tandem", *FEWER, f"{TANDEM_CONFIG}.mode=speculative"),
        (*TANDEM, Bound("tandem/draft_acceptance", "min", 0.3, 1.0)),
    ),
    "tandem, grpo": ("tandem", ("preset=grpo", *FEWER), (*EVERY, *SHARE)),
    "tandem, kl": ("tandem", ("preset=kl", *FEWER), (*EVERY, *SHARE)),
    "serl, self-instruct": ("serl", ("variant=self_instruct",), SERL),
    "serl, majority": ("serl", ("variant=majority",), SERL),
    "serl, ttrl": (
        "serl",
        ("variant=ttrl", "estimator=grpo", "data.train_batch_size=16"),
        SERL,
    ),
    "serl, ground truth, grpo": ("serl", ("variant=ground_truth", "estimator=grpo"), SERL),
    "serl, ground truth, rloo": ("serl", ("variant=ground_truth", "estimator=rloo"), SERL),
    "pasodoble, online": ("pasodoble", ("variant=online", "pasodoble.rounds_per_step=5"), ROLES),
    "pasodoble, offline": ("pasodoble", ("variant=offline", "pasodoble.rounds_per_step=5"), ()),
    "step_ppo, outcome": ("step_ppo", ("preset=outcome", *FEWER), (*EVERY, *CRITIC, *SHARE)),
    "step_ppo, prm": ("step_ppo", ("preset=prm", *FEWER), (*STEP_PPO, *CRITIC)),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_two_steps(start, world, request, name):
    recipe, overrides, bounds = CONFIGURATIONS[name]
    environment = {"TOY_DIR": str(world(recipe)), "PYTHONPATH": os.pathsep.join([str(REPOSITORY)])}
    if recipe == "step_ppo":
        environment["STEP_PPO_DIR"] = str(request.getfixturevalue("step_folder"))
    run = start(f"recipes.{recipe}.main", *TWO_STEPS, *VALIDATED, *overrides, environment=environment)
    assert run.wait() == 0, run.log[-6000:]
    steps = run.metrics()
    assert sorted(steps) == [1, 2], "two steps, each once"
    missed = []
    for bound in bounds:
        values = [step[bound.metric] for _, step in sorted(steps.items()) if bound.metric in step]
        taken = TAKEN[bound.taken](values) if len(values) == 2 else math.nan
        if not bound.low <= taken <= bound.high:
            missed.append(f"{bound.metric}: {bound.taken} of {values} is not in [{bound.low}, {bound.high}]")
    assert not missed, missed
    accuracies = {name: value for name, value in steps[2].items() if name.startswith("val-core/")}
    assert accuracies and all(0 <= value <= 1 for value in accuracies.values()), accuracies
    assert all(math.isfinite(value) for step in steps.values() for value in step.values()), "no metric is NaN"
