"""Termination."""

from recipes.serl.run import Schedule


def test_the_original_set_up_is_125_steps():
    schedule = Schedule()
    assert (schedule.total_prompts, schedule.full_steps) == (2000, 125)


def test_a_run_ends_at_the_last_prompt_and_not_before():
    schedule = Schedule(step_slack=1.5)
    assert not schedule.finished(1999, step=125) and schedule.finished(1999, step=188)
    assert schedule.finished(2000, step=125)
    assert schedule.prompts_left(1990) == 10 and schedule.prompts_left(2001) == 0


def test_steps_that_train_nothing_cannot_prolong_a_run_without_limit():
    schedule = Schedule(instructions_num_per_iteration=32, step_slack=3)
    assert not schedule.finished(0, step=5)
    assert schedule.finished(0, step=6)


def test_iterations_are_counted_from_one():
    schedule = Schedule(iterations=3)
    assert [schedule.iteration(n) for n in (0, 1999, 2000, 4000, 6000)] == [1, 1, 2, 3, 3]
    assert not schedule.finished(2000, step=125) and schedule.finished(6000, step=375)
    assert not Schedule().finished(1999, step=124) and Schedule().finished(1999, step=125)


def test_a_dataset_smaller_than_the_iteration_ends_the_run():
    schedule = Schedule(available_prompts=30)
    assert (schedule.total_prompts, schedule.full_steps, schedule.prompts_left(20)) == (30, 2, 10)
    assert schedule.finished(30, step=2)
    assert Schedule(available_prompts=7500).total_prompts == 2000
