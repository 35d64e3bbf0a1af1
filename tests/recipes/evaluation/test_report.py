"""The report against verl's own file logger."""

import numpy as np
import pytest

from recipes.evaluation import report
from recipes.evaluation.report import LogError, Run


def write_log(path, steps):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f'{{"step": {step}, "data": {{{data}}}}}' for step, data in steps]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def log(tmp_path):
    return write_log(
        tmp_path / "sppo" / "metrics.jsonl",
        [
            (0, '"val-core/toy/acc/mean@1": 0.25'),
            (1, '"critic/score/mean": 0.3, "note": "text", "broken": null'),
            (2, '"critic/score/mean": 0.5, "val-core/toy/acc/mean@1": 0.45'),
        ],
    )


def test_reads_what_verl_writes(tmp_path, monkeypatch):
    from verl.utils.tracking import FileLogger

    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "log.jsonl"))
    logger = FileLogger("project", "run")
    logger.log({"critic/score/mean": np.float64(0.25), "grad_norm": float("nan")}, step=1)
    logger.log({"critic/score/mean": np.float32(0.5)}, step=2)
    logger.finish()
    assert report.read_curves([tmp_path / "log.jsonl"]) == {"critic/score/mean": {1: 0.25, 2: 0.5}}


def test_a_line_cut_short_by_a_kill_is_dropped_and_a_foreign_one_refused(log, tmp_path):
    with log.open("a") as stream:
        stream.write('{"step": 3, "data": {"critic/sco')
    assert report.read_curves([log])["critic/score/mean"] == {1: 0.3, 2: 0.5}
    (tmp_path / "foreign.jsonl").write_text('{"loss": 1}\n{"loss": 2}\n')
    with pytest.raises(LogError, match="line 1: expected"):
        report.read_curves([tmp_path / "foreign.jsonl"])


@pytest.mark.parametrize("content", [None, ""])
def test_missing_and_empty_logs_are_refused(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(LogError, match="metrics.jsonl"):
        report.read_curves([path])


def test_the_later_part_of_a_resumed_run_counts(log, tmp_path):
    later = write_log(tmp_path / "later.jsonl", [(2, '"critic/score/mean": 0.6'), (3, '"critic/score/mean": 0.7')])
    assert report.read_curves([log, later])["critic/score/mean"] == {1: 0.3, 2: 0.6, 3: 0.7}


def test_the_table_has_first_last_and_best_over_seeds():
    metric = "critic/score/mean"
    runs = [
        Run("a", {metric: {1: 0.0, 2: 0.75, 3: 0.5}}),
        Run("a", {metric: {1: 0.5, 2: 0.25, 3: 1.0, 4: 9.0}}),
        Run("b", {"other": {1: 1.0}}),
    ]
    (*_, row) = report.table(runs, [metric]).splitlines()
    assert row == "| a | critic/score/mean | 2 | 0.25 (1) | 0.75 [0.5, 1] (3) | +0.5 | 0.75 (3) |"


@pytest.mark.parametrize(("first", "lines"), [(0, ["start"]), (5, [])])
def test_a_start_is_drawn_where_it_was_measured(first, lines, tmp_path, monkeypatch):
    drawn, metric = [], "val-core/toy/acc/mean@1"
    monkeypatch.setattr("matplotlib.axes.Axes.axhline", lambda *_, label, **__: drawn.append(label))
    report.draw([Run("a", {metric: {first: 0.2, 10: 0.5}})], [metric], tmp_path / "curve.png")
    assert drawn == lines


def test_the_command_writes_picture_and_table(log, tmp_path, capsys):
    picture, table = tmp_path / "out" / "curve.png", tmp_path / "out" / "table.md"
    assert report.main([f"ours={log}", str(log), "--output", str(picture), "--markdown", str(table)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "| ours | val-core/toy/acc/mean@1 | 1 | 0.25 (0) | 0.45 (2) | +0.2 | 0.45 (2) |" in table.read_text()
    assert "| sppo | critic/score/mean |" in capsys.readouterr().out


def test_the_log_of_an_experiment_is_its_runs(tmp_path):
    path = tmp_path / "experiment.jsonl"
    path.write_text(
        '{"command": "..."}\n'
        '{"run": "a", "seed": 1, "step": 0, "accuracy": 0.2}\n{"run": "a", "seed": 2, "step": 0, "accuracy": 0.3}\n'
        '{"run": "b", "seed": 1, "step": 4, "reward": 1, "note": "text"}\n'
        '{"run": "a", "seed": 1, "step": 4, "accuracy": 0.5}\n'
    )
    expected = [{"accuracy": {0: 0.2, 4: 0.5}}, {"accuracy": {0: 0.3}}, {"reward": {4: 1.0}}]
    assert report.read_runs(str(path)) == [Run(label, curves) for label, curves in zip("aab", expected, strict=True)]
    path.write_text('{"run": "a", "step": 0, "accuracy": 0.2}\n')
    with pytest.raises(LogError, match="no log of an experiment"):
        report.read_runs(str(path))


def test_an_unknown_metric_is_refused_with_those_there_are(log, tmp_path, capsys):
    assert report.main([str(log), "--metrics", "actor/entropy", "--output", str(tmp_path / "c.png")]) == 2
    assert "no run has actor/entropy; they have: critic/score/mean, val-core" in capsys.readouterr().err
    assert not (tmp_path / "c.png").exists()


def test_a_picture_that_cannot_be_written_is_said(log, tmp_path, capsys):
    assert report.main([str(log), "--output", str(tmp_path / "curve.words")]) == 2
    assert capsys.readouterr().err.startswith("report: ")


def test_a_title_says_what_a_metric_of_verl_is():
    assert report.in_words("val-core/gsm8k/acc/mean@4") == "held-out accuracy, gsm8k, mean@4"
