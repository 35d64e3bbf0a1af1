"""The report of a quickstart run, on metrics files as verl's file logger writes them."""

import json

import pytest
from quickstart_report import answers, main, summary, validations

from recipes.evaluation.report import LogError, read_curves

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


def run_main(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["report", *map(str, arguments)])
    return main()


def test_every_validation_is_found_in_order(metrics):
    assert validations(read_curves([metrics])) == [(0, 0.278), (2, 0.3), (3, 0.426)]


def test_a_validation_of_several_samples_is_reported(tmp_path, monkeypatch, capsys):
    path = tmp_path / "metrics.jsonl"
    steps = [
        {"val-core/toy_arithmetic/acc/mean@4": accuracy, "val-joint-core/toy_arithmetic/acc/mean@4": 0.9}
        | {"val-core/toy_arithmetic/acc/best@4/mean": 0.8}
        for accuracy in (0.25, 0.5)
    ]
    path.write_text("".join(json.dumps({"step": i, "data": data}) + "\n" for i, data in enumerate(steps)))
    assert run_main(monkeypatch, path, "--curve", tmp_path / "curve.png") == 0
    output = capsys.readouterr().out
    assert "mean of 4 samples" in output and "25.0%" in output and "50.0%" in output and "+25.0 points" in output


def test_summary_gives_both_ends_their_intervals_and_the_change(metrics):
    text = summary(validations(read_curves([metrics])), held_out=500)
    before, after, change = text.splitlines()[1:]
    assert "27.8%" in before and "[24.1%, 31.9%]" in before
    assert "42.6%" in after and "[38.3%, 47.0%]" in after
    assert "+14.8 points" in change


def test_one_validation_is_not_enough():
    with pytest.raises(LogError, match="before and one after"):
        summary([(0, 0.278)], held_out=500)


def test_command_line_writes_a_png(metrics, tmp_path, monkeypatch, capsys):
    curve = tmp_path / "folder" / "curve.png"
    assert run_main(monkeypatch, metrics, "--curve", curve, "--title", "sppo") == 0
    assert curve.read_bytes().startswith(b"\x89PNG")
    assert "before" in capsys.readouterr().out


def test_a_run_without_validation_is_drawn_and_then_refused(tmp_path, monkeypatch, capsys):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(RUN[1]) + "\n")
    assert run_main(monkeypatch, path, "--curve", tmp_path / "curve.png") == 1
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert "expected a validation before" in capsys.readouterr().err


def test_a_question_that_turned_right_is_shown_with_both_answers(tmp_path):
    def write(step, *rows):
        names = ("input", "output", "score")
        lines = (json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
        (tmp_path / f"{step}.jsonl").write_text("".join(lines))

    first, second = ("user\nHow many a?\nassistant\n", "user\nHow many b?\nassistant\n")
    write(0, (first, "3", 1.0), (second, "4", 0.0))
    with pytest.raises(LogError, match="before and one after"):
        answers(tmp_path)
    write(10, (first, "3", 1.0), (second, "b = b, 1.\n1", 1.0))
    text = answers(tmp_path)
    assert "before 0%   after 50%" in text and "one question: How many b?" in text
    assert "before  4   (wrong)" in text and "b = b, 1.\n          1   (right)" in text
