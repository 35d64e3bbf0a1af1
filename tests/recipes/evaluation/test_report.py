"""The report against verl's own file logger."""

import numpy as np
import pytest

from recipes.evaluation import learning_curves, report
from recipes.evaluation.learning_curves import LogError, Run


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


@pytest.mark.e2e
def test_reads_what_verl_writes(tmp_path, monkeypatch):
    from verl.utils.tracking import FileLogger

    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "log.jsonl"))
    logger = FileLogger("project", "run")
    logger.log({"critic/score/mean": np.float64(0.25), "grad_norm": float("nan")}, step=1)
    logger.log({"critic/score/mean": np.float32(0.5)}, step=2)
    logger.finish()
    assert learning_curves.read_curves([tmp_path / "log.jsonl"]) == {"critic/score/mean": {1: 0.25, 2: 0.5}}


def test_a_line_cut_short_by_a_kill_is_dropped_and_a_foreign_one_refused(log, tmp_path):
    with log.open("a") as stream:
        stream.write('{"step": 3, "data": {"critic/sco')
    assert learning_curves.read_curves([log])["critic/score/mean"] == {1: 0.3, 2: 0.5}
    (tmp_path / "foreign.jsonl").write_text('{"loss": 1}\n{"loss": 2}\n')
    with pytest.raises(LogError, match="line 1: expected"):
        learning_curves.read_curves([tmp_path / "foreign.jsonl"])


@pytest.mark.parametrize("content", [None, ""])
def test_missing_and_empty_logs_are_refused(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(LogError, match="metrics.jsonl"):
        learning_curves.read_curves([path])


def test_the_later_part_of_a_resumed_run_counts(log, tmp_path):
    later = write_log(tmp_path / "later.jsonl", [(2, '"critic/score/mean": 0.6'), (3, '"critic/score/mean": 0.7')])
    assert learning_curves.read_curves([log, later])["critic/score/mean"] == {1: 0.3, 2: 0.6, 3: 0.7}


def test_the_table_has_first_last_and_best_over_seeds():
    metric = "critic/score/mean"
    runs = [
        Run("a", {metric: {1: 0.0, 2: 0.75, 3: 0.5}}),
        Run("a", {metric: {1: 0.5, 2: 0.25, 3: 1.0, 4: 9.0}}),
        Run("b", {"other": {1: 1.0}}),
    ]
    (*_, row) = learning_curves.table(runs, [metric]).splitlines()
    assert row == "| a | critic/score/mean | 2 | 0.25 (1) | 0.75 [0.5, 1] (3) | +0.5 | 0.75 (3) |"


def test_the_command_writes_picture_and_table(log, tmp_path, capsys):
    picture, table = tmp_path / "out" / "curve.png", tmp_path / "out" / "table.md"
    assert report.main([f"ours={log}", str(log), "--output", str(picture), "--markdown", str(table)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "| ours | val-core/toy/acc/mean@1 | 1 | 0.25 (0) | 0.45 (2) | +0.2 | 0.45 (2) |" in table.read_text()
    assert "| sppo | critic/score/mean |" in capsys.readouterr().out


def test_an_unknown_metric_is_refused_with_those_there_are(log, tmp_path, capsys):
    assert report.main([str(log), "--metrics", "actor/entropy", "--output", str(tmp_path / "c.png")]) == 2
    assert "no run has actor/entropy; they have: critic/score/mean, val-core" in capsys.readouterr().err
    assert not (tmp_path / "c.png").exists()


def test_a_picture_that_cannot_be_written_is_said(log, tmp_path, capsys):
    assert report.main([str(log), "--output", str(tmp_path / "curve.words")]) == 2
    assert capsys.readouterr().err.startswith("report: ")


METRIC = "val-core/toy/acc/mean@1"


def test_a_row_per_seed_has_the_accuracy_at_each_step_and_intervals_at_the_ends():
    runs = [Run("a", {METRIC: {0: 0.278, 5: 0.3, 10: 0.426}}), Run("a", {METRIC: {0: 0.278, 10: 0.25}})]
    assert learning_curves.table_of_seeds(runs, [METRIC], problems=500).splitlines() == [
        "| run | seed | step 0 | step 10 | change |",
        "|---|---|---|---|---|",
        "| a | 1 | 27.8 [24.1, 31.9] | 42.6 [38.3, 47.0] | +14.8 |",
        "| a | 2 | 27.8 [24.1, 31.9] | 25.0 [21.4, 29.0] | -2.8 |",
    ]
    assert "| a | 1 | 0.278 | 0.3 | 0.426 | +0.148 |" in learning_curves.table_of_seeds(
        runs[:1], [METRIC], steps=[10, 0, 5]
    )
    both = [Run("b", {METRIC: {0: 1.0, 1: 0.5}, "other": {0: 3.0, 1: 4.0}})]
    assert "| b | 1 | other | 3 | 4 | +1 |" in learning_curves.table_of_seeds(both, [METRIC, "other"])


@pytest.mark.parametrize(
    ("curves", "options", "message"),
    [
        ({"other": {0: 1.0}}, {}, "no run has val-core"),
        ({METRIC: {0: 0.2}}, {"steps": [0, 7]}, "a, seed 1, has no .* at step 7"),
        ({METRIC: {0: 3.5}}, {"problems": 500}, "accuracy between 0 and 1, found 3.5"),
    ],
)
def test_what_a_row_per_seed_cannot_show_is_refused(curves, options, message):
    with pytest.raises(LogError, match=message):
        learning_curves.table_of_seeds([Run("a", curves)], [METRIC], **options)


def test_kept_logs_give_the_same_table_again(log, tmp_path, capsys):
    options = ["--by-seed", "--problems", "500", "--metrics", METRIC, "--output", str(tmp_path / "c.png")]
    assert report.main([f"a={log}", f"a={log}", *options, "--keep", str(tmp_path / "kept")]) == 0
    first = capsys.readouterr().out
    files = sorted((tmp_path / "kept").iterdir())
    assert [file.name for file in files] == ["a-1.jsonl", "a-2.jsonl"]
    assert set(learning_curves.read_curves(files[:1])) == {METRIC}
    assert report.main([*(f"a={file}" for file in files), *options]) == 0
    assert capsys.readouterr().out == first


def test_steps_without_by_seed_are_refused(log, capsys):
    with pytest.raises(SystemExit):
        report.main([str(log), "--steps", "1"])
    assert "--steps and --problems belong to --by-seed" in capsys.readouterr().err
