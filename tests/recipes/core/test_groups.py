"""Which responses are left to train on, whatever was skipped."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.core.groups import Group, Sample, drop_unscored, group_by_prompt
from reward_fns.errors import BudgetSpent
from reward_fns.result import Fail, FailureBudget, Score, Skip

ANY = FailureBudget(share=1.0)


def make(uid, *results):
    return Group(uid, [Sample(f"{uid}_{i}_0", "text", result, 3, {}) for i, result in enumerate(results)])


results = st.one_of(st.floats(-2, 2).map(Score), st.sampled_from(["none", "killed: worker 3", "session"]).map(Skip))


@given(st.lists(st.lists(results, min_size=1, max_size=6), min_size=1, max_size=5), st.integers(1, 4))
def test_the_kept_are_the_scored_of_groups_that_are_large_enough(groups, min_group):
    groups = [make(f"u{i}", *members) for i, members in enumerate(groups)]
    scored = {g.uid: [s for s in g.samples if isinstance(s.result, Score)] for g in groups}
    expected = [s.key for g in groups for s in scored[g.uid] if len(scored[g.uid]) >= min_group]
    total = sum(len(group.samples) for group in groups)
    if not expected:
        with pytest.raises(BudgetSpent, match="nothing_left_to_train_on"):
            drop_unscored(groups, ANY, expected=total, min_group=min_group)
        return
    scored = drop_unscored(groups, ANY, expected=total, min_group=min_group)
    assert scored.kept == expected
    assert sorted(scored.kept + scored.dropped) == sorted(s.key for g in groups for s in g.samples)
    assert set(scored.rewards) == set(expected)
    assert all(math.isfinite(value) for value in scored.metrics.values())


def test_single_responses_are_no_groups():
    scored = drop_unscored([make("a", Score(1.0)), make("b", Skip("x"))], ANY, expected=2, min_group=2, grouped=False)
    assert scored.kept == ["a_0_0"] and scored.dropped == ["b_0_0"]


def test_the_budget_counts_skips_and_sessions_that_never_came_back():
    group = make("a", *[Score(1.0)] * 8, Skip("endpoint: down"))
    drop_unscored([group], FailureBudget(0.2), expected=10, min_group=2)
    with pytest.raises(BudgetSpent, match="2 of 10 samples could not be judged.*endpoint"):
        drop_unscored([group], FailureBudget(0.1), expected=10, min_group=2)


def test_a_fail_stops_whatever_the_budget():
    with pytest.raises(BudgetSpent, match="the key is wrong"):
        drop_unscored([make("a", Score(1.0), Score(1.0), Fail("the key is wrong"))], ANY, expected=3, min_group=2)


def test_a_hook_can_drop_a_group():
    first, second = make("a", Score(1.0), Score(0.0)), make("b", Score(1.0), Score(0.0))
    first.drop = "unanimous"
    scored = drop_unscored([first, second], ANY, expected=4, min_group=2)
    assert scored.kept == ["b_0_0", "b_1_0"]
    assert scored.metrics["groups/dropped_by_hook"] == 1.0


def test_reasons_are_counted():
    group = make("a", Score(1.0), Score(0.0, "time_out"), Score(0.0, "time_out"), Skip("raised_KeyError: 'x'"))
    metrics = drop_unscored([group], ANY, expected=5, min_group=2).metrics
    assert metrics["reward_faults/score/time_out"] == 2
    assert metrics["reward_faults/skip/raised_KeyError"] == 1
    assert metrics["reward_faults/skip/session_failed"] == 1
    assert metrics["reward_faults/skipped_share"] == pytest.approx(0.4)


def test_samples_are_grouped_by_prompt_in_session_order():
    keys = ["b_1_0", "a_10_0", "a_2_0", "b_0_0", "a_2_1"]
    groups = group_by_prompt([Sample(key, "", Score(0.0), 1, {}) for key in keys])
    assert [group.uid for group in groups] == ["b", "a"]
    assert [sample.key for sample in groups[1].samples] == ["a_2_0", "a_2_1", "a_10_0"]


def test_rewards_that_a_hook_changed_are_told_from_those_it_left():
    group = make("a", Score(1.0), Score(0.0), Skip("endpoint: down"), Score(0.5))
    group.samples[1].result, group.samples[2].result = Score(0.7), Score(0.2)
    group.samples[3].result = Skip("hook")
    scored = drop_unscored([group], ANY, expected=4, min_group=2)
    assert scored.rewards == {"a_0_0": 1.0, "a_1_0": 0.7, "a_2_0": 0.2}
    assert scored.changed == {"a_1_0": 0.7, "a_2_0": 0.2}
