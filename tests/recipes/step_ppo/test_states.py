"""Intermediate states: which steps are eligible, how many, how they are spread over files."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.step_ppo.labels import (
    StateSampling,
    sample_states,
    shard_bounds,
    state_lines,
    state_records,
    trajectory_rng,
)
from recipes.step_ppo.pipeline import states
from recipes.step_ppo.pipeline.records import expand, open_journal, read

RESPONSE = (
    "first thought\nAction 1: look at it\nObservation 1: it is so\nThought 2: hence\nmore\nAction 2: check\n"
    "Action 3: Finish[The answer is A.]"
)
EVERY = StateSampling(ratio=1.0, ratio_s=0.0)


def test_the_first_thought_and_the_final_action_are_no_states():
    assert state_lines(RESPONSE) == [(1, "Action"), (2, "Observation"), (3, "Thought"), (5, "Action")]


def test_prefix_ends_with_the_step_line_not_its_continuation():
    prefixes = [s.prefix for s in sample_states(RESPONSE, EVERY, random.Random(0))]
    assert prefixes[2].endswith("\nThought 2: hence")
    assert prefixes[3].endswith("more\nAction 2: check")
    assert all(RESPONSE.startswith(prefix) for prefix in prefixes)


@pytest.mark.parametrize(
    ("ratio_s", "ratio_e", "steps"),
    [
        (0.0, 1.0, [0, 1, 2, 3]),
        (0.2, 1.0, [0, 1, 2, 3]),
        (0.25, 1.0, [1, 2, 3]),
        (0.49, 1.0, [1, 2, 3]),
        (0.5, 1.0, [2, 3]),
        (0.0, 0.74, [0, 1]),
        (0.0, 0.75, [0, 1, 2]),
        (1.0, 1.0, []),
        (0.5, 0.25, []),
    ],
)
def test_bounds_are_floors(ratio_s, ratio_e, steps):
    sampling = StateSampling(ratio=1.0, ratio_s=ratio_s, ratio_e=ratio_e)
    assert [s.step for s in sample_states(RESPONSE, sampling, random.Random(0))] == steps


def test_ratio_is_an_inclusion_probability():
    sampling = StateSampling(ratio=0.3, ratio_s=0.0)
    count = sum(len(sample_states(RESPONSE, sampling, trajectory_rng(0, str(i), 0))) for i in range(5000))
    # 20,000 draws at 0.3: six standard deviations are 0.02.
    assert abs(count / 20000 - 0.3) < 0.02
    assert sample_states(RESPONSE, StateSampling(ratio=0.0), random.Random(0)) == []


def test_the_action_filter_leaves_the_other_draws_where_they_were():
    every = StateSampling(ratio=0.5, ratio_s=0.0)
    without = StateSampling(ratio=0.5, ratio_s=0.0, drop_kinds=("Action",))
    for i in range(50):
        kept = [s for s in sample_states(RESPONSE, every, trajectory_rng(1, "q", i)) if s.kind != "Action"]
        assert sample_states(RESPONSE, without, trajectory_rng(1, "q", i)) == kept


def test_responses_with_too_few_steps_have_no_state():
    assert sample_states("a\nAction 1: Finish[The answer is A.]", EVERY, random.Random(0)) == []
    assert sample_states("", EVERY, random.Random(0)) == []


@pytest.mark.parametrize("field", ["ratio", "ratio_s", "ratio_e"])
def test_ratios_outside_0_1(field):
    with pytest.raises(ValueError, match=field):
        StateSampling(**{field: 1.5})


@given(st.integers(0, 500), st.integers(1, 40))
def test_shards_lose_no_remainder(count, num_shards):
    bounds = shard_bounds(count, num_shards)
    covered = [i for start, stop in bounds for i in range(start, stop)]
    assert covered == list(range(count))
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1 and len(bounds) == num_shards


def test_the_original_lost_seven_questions_here():
    assert shard_bounds(12567, 20)[-1][1] == 12567


def trajectories(path, count):
    with open_journal(path) as journal:
        for i in range(count):
            responses = [{"text": RESPONSE, "correct": True}, {"text": RESPONSE.replace("more", "m"), "correct": False}]
            journal.append({"key": str(i), "id": str(i), "responses": responses})
    return str(path)


def test_command_shards_and_merge_hold_the_same_states_as_one_file(tmp_path):
    source = trajectories(tmp_path / "t.jsonl", 13)
    options = ["--trajectories", source, "--ratio", "0.5", "--seed", "3"]
    states.main([*options, "--output", str(tmp_path / "one.jsonl")])
    states.main([*options, "--output", str(tmp_path / "many.jsonl"), "--num-shards", "5"])
    shards = expand([str(tmp_path / "many.*-of-5.jsonl")])
    assert [p.name for p in shards] == [f"many.{i}-of-5.jsonl" for i in range(5)]
    assert list(read(shards)) == list(read([tmp_path / "one.jsonl"]))


def test_command_applies_min_step_without_moving_indices(tmp_path):
    path = tmp_path / "t.jsonl"
    short = "a\nAction 1: look\nAction 2: Finish[The answer is A.]"
    with open_journal(path) as journal:
        responses = [{"text": short, "correct": True}, {"text": RESPONSE, "correct": True}]
        journal.append({"key": "0", "id": "0", "responses": responses})
    out = tmp_path / "s.jsonl"
    states.main(
        ["--trajectories", str(path), "--output", str(out), "--ratio", "1", "--ratio-s", "0", "--min-step", "7"]
    )
    records = list(read([out]))
    assert {r["response_index"] for r in records} == {1} and len(records) == 4


def test_lines_with_text_are_steps_in_the_style_of_lines():
    assert state_lines("a\n\nb\n  \nc", "lines") == [(0, "Line"), (2, "Line")]


def test_no_shards_at_all_are_refused():
    assert shard_bounds(5, 1) == [(0, 5)]
    with pytest.raises(ValueError, match="at least 1, found 0"):
        shard_bounds(5, 0)


def test_records_name_their_state():
    trajectory = {"id": "q", "responses": [{"text": RESPONSE}, {"text": RESPONSE}]}
    found = list(state_records(trajectory, EVERY, 0))
    assert [r["key"] for r in found] == [f"q/{i}/{step}" for i in range(2) for step in range(4)]
    assert [(r["id"], r["response_index"], r["step"], r["kind"]) for r in found[:2]] == [
        ("q", 0, 0, "Action"),
        ("q", 0, 1, "Observation"),
    ]
    assert all(r["prefix"] + r["rest"] == RESPONSE for r in found)


@pytest.mark.parametrize(
    ("output", "first"),
    [
        ("states.jsonl", "states.0-of-2.jsonl"),
        ("round.0/states.jsonl", "round.0/states.0-of-2.jsonl"),
        ("round.0/states", "round.0/states.0-of-2"),
        ("../states", "../states.0-of-2"),
    ],
)
def test_a_shard_lies_in_the_folder_that_was_named(output, first):
    assert states.shard_path(output, 0, 2) == first and states.shard_path(output, 0, 1) == output
