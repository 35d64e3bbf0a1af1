"""Macro pass@k and the checkpoint it keeps."""

import json
import os
import shutil
from pathlib import Path

import pytest

from recipes.tandem.selection import Problem, macro_pass_at_k, problems, read_record, update_best

GROUPS = {"AMC": ["amc"], "AIME": ["aime24", "aime25"]}


def test_macro_pools_years_and_weighs_benchmarks_equally():
    verdicts = [Problem("amc", 4, 4), Problem("amc", 0, 4), Problem("aime24", 0, 4), Problem("aime25", 1, 4)]
    verdicts += [Problem("aime25", 0, 4), Problem("aime25", 0, 4)]
    macro, each, left_out = macro_pass_at_k(verdicts, 4, GROUPS)
    assert each == {"AMC": 0.5, "AIME": 0.25} and macro == 0.375 and left_out == 0
    assert macro_pass_at_k(verdicts, 4)[1] == {"amc": 0.5, "aime24": 0.0, "aime25": pytest.approx(1 / 3)}


def test_strange_and_empty_benchmarks_are_refused():
    with pytest.raises(ValueError, match="'minerva' belongs to no benchmark"):
        macro_pass_at_k([Problem("minerva", 1, 4)], 4, GROUPS)
    with pytest.raises(ValueError, match="no problem with 4 judged responses in AIME"):
        macro_pass_at_k([Problem("amc", 1, 4), Problem("aime24", 3, 3)], 4, GROUPS)
    with pytest.raises(ValueError, match="in the validation"):
        macro_pass_at_k([], 4)


def test_responses_become_problems():
    found = problems(
        ["amc", "amc", "amc", "aime24", "aime24"],
        ["a", "a", "a", "b", "b"],
        [1.0, 0.0, 0.0, 1.0, None],
        skipped=[0.0, 0.0, 1.0, 0.0, None],
        expected={("amc", "a"): 4, ("aime24", "b"): 2, ("amc", "never"): 2},
    )
    # one of amc's four never arrived and counts as wrong, one could not be judged and does not count
    assert found == [Problem("amc", 1, 3), Problem("aime24", 1, 1), Problem("amc", 0, 2)]


def test_problems_with_too_few_verdicts_are_counted():
    verdicts = [Problem("amc", 1, 4), Problem("amc", 1, 3), Problem("amc", 3, 3)]
    assert macro_pass_at_k(verdicts, 4) == (1.0, {"amc": 1.0}, 2)


def test_an_accuracy_of_a_half_is_right():
    assert problems(["amc"] * 3, ["a"] * 3, [0.5, 0.49, None]) == [Problem("amc", 1, 2)]


def checkpoint(directory, step, content=b"weights"):
    folder = directory / f"global_step_{step}" / "actor"
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes(content)
    return folder / "model.pt"


def test_the_best_outlives_verls_rotation(tmp_path):
    first = checkpoint(tmp_path, 20, b"best")
    assert update_best(tmp_path, 20, "pass", 0.5)
    assert os.stat(first).st_ino == os.stat(tmp_path / "best/global_step_20/actor/model.pt").st_ino
    first.unlink()
    checkpoint(tmp_path, 40, b"worse")
    assert not update_best(tmp_path, 40, "pass", 0.5)
    assert (tmp_path / "best/global_step_20/actor/model.pt").read_bytes() == b"best"
    checkpoint(tmp_path, 60, b"better")
    assert update_best(tmp_path, 60, "pass", 0.6)
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["best.json", "global_step_60"]
    assert json.loads((tmp_path / "best/best.json").read_text()) == {"step": 60, "metric": "pass", "value": 0.6}
    assert not list(tmp_path.glob("best.*"))


def test_steps_without_a_checkpoint_keep_nothing(tmp_path):
    assert not update_best(tmp_path, 10, "pass", 0.9) and read_record(tmp_path) is None


def test_a_record_from_before_a_resume_does_not_count(tmp_path):
    for step in (20, 40):
        checkpoint(tmp_path, step)
    assert update_best(tmp_path, 40, "pass", 0.9)
    assert update_best(tmp_path, 20, "pass", 0.1)


def test_leftovers_of_a_kill_are_replaced(tmp_path):
    checkpoint(tmp_path, 20)
    (tmp_path / "best.partial" / "global_step_20").mkdir(parents=True)
    (tmp_path / "best.former").mkdir()
    assert update_best(tmp_path, 20, "pass", 0.2) and not list(tmp_path.glob("best.*"))


@pytest.mark.parametrize(("renames", "kept"), [(0, 20), (1, 40), (2, 40)])
def test_a_kill_at_any_rename_loses_no_best_to_a_worse_step(tmp_path, monkeypatch, renames, kept):
    checkpoint(tmp_path, 20)
    assert update_best(tmp_path, 20, "pass", 0.5)
    checkpoint(tmp_path, 40)
    left, replace, remove = [renames], os.replace, shutil.rmtree

    def killed(source, target):
        if Path(source).is_dir():
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        replace(source, target)

    def killed_at_the_end(path, **options):
        if not left[0] and Path(path).exists():
            raise KeyboardInterrupt
        remove(path, **options)

    monkeypatch.setattr(os, "replace", killed)
    monkeypatch.setattr(shutil, "rmtree", killed_at_the_end)
    with pytest.raises(KeyboardInterrupt):
        update_best(tmp_path, 40, "pass", 0.6)
    monkeypatch.undo()
    checkpoint(tmp_path, 60, b"worse")
    assert not update_best(tmp_path, 60, "pass", 0.1)
    assert read_record(tmp_path)["step"] == kept and (tmp_path / f"best/global_step_{kept}/actor/model.pt").is_file()


def test_a_strange_record_is_refused(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best/best.json").write_text("{}")
    checkpoint(tmp_path, 20)
    with pytest.raises(ValueError, match="is not a record of the best checkpoint"):
        update_best(tmp_path, 20, "pass", 0.2)
