"""Which step a run resumes from after a kill at any moment, and that its curve survives."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.errors import CheckpointError
from recipes.lifecycle import resume


def make_step(directory, step, *, shards=1, data=True):
    actor = directory / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    for rank in range(shards):
        (actor / f"model_world_size_2_rank_{rank}.pt").write_bytes(b"weights")
    if data:
        (actor.parent / "data.pt").write_bytes(b"cursor")


def track(directory, text):
    (directory / resume.TRACKER).write_text(text)


def test_nothing_yet(tmp_path):
    assert resume.resume_step(tmp_path / "none") == (0, None)
    assert resume.resume_step(tmp_path) == (0, None)


def test_the_tracker_is_followed(tmp_path):
    make_step(tmp_path, 2, shards=2)
    make_step(tmp_path, 4, shards=2)
    track(tmp_path, "2")
    assert resume.resume_step(tmp_path) == (2, None)


@pytest.mark.parametrize("text", ["", "four", "6", "8"])
def test_a_tracker_without_a_complete_folder_falls_back(tmp_path, text):
    make_step(tmp_path, 2, shards=2)
    make_step(tmp_path, 4, shards=2)
    make_step(tmp_path, 6, shards=1)
    make_step(tmp_path, 8, shards=2, data=False)
    track(tmp_path, text)
    step, told = resume.resume_step(tmp_path)
    assert step == 4 and "global_step_4" in told
    assert (tmp_path / resume.TRACKER).read_text() == "4"


def test_a_folder_without_anything_complete_is_refused(tmp_path):
    make_step(tmp_path, 2, shards=1)
    track(tmp_path, "2")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        resume.resume_step(tmp_path)


def test_a_kill_before_the_first_tracker_starts_over(tmp_path):
    make_step(tmp_path, 2, shards=1)
    assert resume.resume_step(tmp_path) == (0, None)


def line(step, attempt):
    return json.dumps({"step": step, "data": {"attempt": attempt}}) + "\n"


def read(path):
    return [json.loads(text) for text in path.read_text().splitlines()]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_metrics_of_killed_attempts_survive(tmp_path_factory, attempts):
    """Each attempt resumes at some saved step and logs some steps further; every step is there once, newest value."""
    metrics = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    reached, expected = 0, {}
    for attempt, (back, length) in enumerate(attempts):
        start = max(0, reached - back)
        resume.carry_metrics_over(metrics, start)
        expected = {step: value for step, value in expected.items() if step <= start}
        with metrics.open("w") as file:
            for step in range(start + 1, start + 1 + length):
                file.write(line(step, attempt))
                expected[step] = attempt
            file.write('{"step": 99, "da')
        reached = start + length
    metrics.write_text("".join(text for text in metrics.read_text().splitlines(keepends=True) if text.endswith("\n")))
    resume.join_metrics(metrics)
    assert {entry["step"]: entry["data"]["attempt"] for entry in read(metrics)} == expected
    assert not resume.history_file(metrics).exists()


def test_what_is_logged_of_one_step_at_two_times_stays_together(tmp_path):
    """A run that ends early validates after its last step: verl logs that step twice."""
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(line(1, 0))
    resume.carry_metrics_over(metrics, 1)
    metrics.write_text(line(2, 1) + json.dumps({"step": 2, "data": {"val": 0.5}}) + "\n")
    resume.join_metrics(metrics)
    assert read(metrics) == [{"step": 1, "data": {"attempt": 0}}, {"step": 2, "data": {"attempt": 1, "val": 0.5}}]
