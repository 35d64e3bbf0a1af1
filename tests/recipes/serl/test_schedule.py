"""Termination and learning rate."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from recipes.serl.schedule import Schedule, learning_rate_factor


def test_the_original_set_up_is_125_steps_and_2000_updates():
    schedule = Schedule()
    assert (schedule.total_prompts, schedule.full_steps, schedule.updates) == (2000, 125, 2000)


def test_a_run_ends_at_the_last_prompt_and_not_before():
    schedule = Schedule(step_slack=1.5)
    assert schedule.finished(1999, step=125) is None and schedule.finished(1999, step=188) == "max_steps"
    assert schedule.finished(2000, step=125) == "trained_prompts"
    assert schedule.prompts_left(1990) == 10 and schedule.prompts_left(2001) == 0


def test_steps_that_train_nothing_cannot_prolong_a_run_without_limit():
    schedule = Schedule(instructions_num_per_iteration=32, step_slack=3)
    assert schedule.finished(0, step=5) is None
    assert schedule.finished(0, step=6) == "max_steps"


def test_iterations_are_counted_from_one():
    schedule = Schedule(iterations=3)
    assert [schedule.iteration(n) for n in (0, 1999, 2000, 4000, 6000)] == [1, 1, 2, 3, 3]
    assert schedule.finished(2000, step=125) is None and schedule.finished(6000, step=375) == "trained_prompts"
    assert Schedule().finished(1999, step=124) is None and Schedule().finished(1999, step=125) == "max_steps"


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "16"])
def test_counts_must_be_positive_whole_numbers(value):
    with pytest.raises(ValueError, match="iterations must be a positive whole number"):
        Schedule(iterations=value)


def test_learning_rate_equals_transformers_until_the_end_and_never_rises_after_it():
    total = 200
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_cosine_with_min_lr_schedule_with_warmup(optimizer, 6, total, min_lr_rate=0.1)
    rebound = 0.0
    for update in range(2 * total):
        ours = learning_rate_factor(update, total)
        if update <= total:
            assert ours == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        else:
            assert ours == 0.1
            rebound = max(rebound, theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    assert rebound > 0.9


@settings(deadline=None)
@given(st.integers(1, 5000), st.floats(0, 0.5), st.floats(0, 1))
def test_learning_rate_rises_in_the_warm_up_and_falls_ever_after(total, warmup_ratio, min_ratio):
    updates = range(0, 2 * total, max(1, total // 50))
    factors = [learning_rate_factor(u, total, warmup_ratio=warmup_ratio, min_ratio=min_ratio) for u in updates]
    warm = math.ceil(total * warmup_ratio)
    after = [f for u, f in zip(updates, factors, strict=True) if u >= warm]
    assert all(0.0 <= f <= 1.0 for f in factors)
    assert after == sorted(after, reverse=True)
