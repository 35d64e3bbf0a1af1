"""The report of a quickstart run, on metrics files as verl's file logger writes them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quickstart_report import ReportError, draw, main, read_metrics, summary, wilson_interval

RUN = [
    {"step": 0, "data": {"val-core/toy_arithmetic/acc/mean@1": 0.278}},
    {"step": 1, "data": {"critic/score/mean": 0.21, "timing_s/step": 7.5}},
    {"step": 2, "data": {"critic/score/mean": 0.25, "val-core/toy_arithmetic/acc/mean@1": 0.3}},
    {"step": 3, "data": {"critic/score/mean": 0.35, "val-core/toy_arithmetic/acc/mean@1": 0.426}},
]


@pytest.fixture
def metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RUN))
    return path


def test_curves_hold_what_was_logged(metrics):
    curves = read_metrics(metrics)
    assert curves.reward == [(1, 0.21), (2, 0.25), (3, 0.35)]
    assert curves.validation == [(0, 0.278), (2, 0.3), (3, 0.426)]


def test_a_repeated_step_counts_once_with_its_last_value(metrics):
    with metrics.open("a") as file:
        file.write(json.dumps({"step": 3, "data": {"critic/score/mean": 0.4}}) + "\n")
    assert read_metrics(metrics).reward[-1] == (3, 0.4)


def test_a_line_cut_short_at_the_end_is_left_out(metrics):
    with metrics.open("a") as file:
        file.write('{"step": 4, "data": {"critic/sc')
    assert read_metrics(metrics).reward[-1] == (3, 0.35)


@pytest.mark.parametrize("line", ["{", "[]", '{"step": 1}', '{"step": "x", "data": {}}', '{"step": 1, "data": 3}'])
def test_a_broken_line_inside_is_refused_with_its_number(metrics, line):
    metrics.write_text(line + "\n" + metrics.read_text())
    with pytest.raises(ReportError, match="line 1"):
        read_metrics(metrics)


def test_reward_stands_in_when_no_accuracy_is_logged(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        json.dumps({"step": 0, "data": {"val-core/a/reward/mean@1": 0.5, "val-core/b/reward/mean@1": 0.7}}) + "\n"
    )
    assert read_metrics(path).validation == [(0, pytest.approx(0.6))]


def test_summary_gives_both_ends_their_intervals_and_the_change(metrics):
    text = summary(read_metrics(metrics), held_out=500)
    before, after, change = text.splitlines()[1:]
    assert "27.8%" in before and "[24.1%, 31.9%]" in before
    assert "42.6%" in after and "[38.3%, 47.0%]" in after
    assert "+14.8 points" in change


def test_one_validation_is_not_enough(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(RUN[0]) + "\n")
    with pytest.raises(ReportError, match="before and one after"):
        summary(read_metrics(path), held_out=500)


def test_command_line_writes_a_png(metrics, tmp_path, monkeypatch, capsys):
    curve = tmp_path / "folder" / "curve.png"
    monkeypatch.setattr("sys.argv", ["report", str(metrics), "--curve", str(curve), "--title", "sppo"])
    assert main() == 0
    assert curve.read_bytes().startswith(b"\x89PNG")
    assert "before" in capsys.readouterr().out


def test_command_line_says_that_the_file_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["report", str(tmp_path / "none.jsonl")])
    assert main() == 1
    assert "does not exist" in capsys.readouterr().err


def test_a_run_without_validation_still_draws(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(RUN[1]) + "\n")
    draw(path, tmp_path / "curve.png", "reward only")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_wilson_interval_at_the_ends_has_its_closed_form():
    z2 = 1.959963984540054**2
    assert wilson_interval(0, 500) == pytest.approx((0.0, z2 / (500 + z2)), abs=1e-15)
    assert wilson_interval(500, 500) == pytest.approx((500 / (500 + z2), 1.0), abs=1e-15)


@given(st.integers(1, 2000), st.data())
def test_wilson_bounds_solve_the_score_equation(trials, data):
    successes = data.draw(st.integers(0, trials))
    share = successes / trials
    for bound in wilson_interval(successes, trials):
        # A bound lies where the observed share is 1.96 standard errors away, the error being the bound's own.
        assert (share - bound) ** 2 == pytest.approx(1.959964**2 * bound * (1 - bound) / trials, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_impossible_counts(successes, trials):
    with pytest.raises(ValueError, match="expected 0 <= successes"):
        wilson_interval(successes, trials)
