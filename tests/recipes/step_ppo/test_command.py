"""A stage that refuses its input ends with one sentence; a fault keeps its traceback."""

import argparse
import json

import pytest

from recipes.step_ppo.pipeline import command, pairs, states
from recipes.step_ppo.pipeline.records import open_journal
from recipes.step_ppo.pipeline.stage import Recorder


def exit_of(main):
    with pytest.raises(SystemExit) as ended:
        command.run(main)
    return ended.value.code


def test_the_code_of_the_command_is_the_code_of_the_process():
    assert exit_of(lambda: 0) == 0 and exit_of(lambda: 3) == 3


def test_a_refusal_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/anywhere/states.py"])
    broken = tmp_path / "in.jsonl"
    broken.write_text('{"key": 1\n' + json.dumps({"key": 2}) + "\n")
    sentence = exit_of(lambda: states.main(["--trajectories", str(broken), "--output", str(tmp_path / "out.jsonl")]))
    assert sentence.startswith(f"states: {broken}, line 1 is corrupt") and "\n" not in sentence


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    assert "No such file" in exit_of(lambda: len((tmp_path / "none").read_text()))


def test_options_out_of_range_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/anywhere/pairs.py"])
    (tmp_path / "t.jsonl").write_text("")
    files = ["--trajectories", str(tmp_path / "t.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    sentence = exit_of(lambda: pairs.main([*files, "--margin", "inf"]))
    assert sentence == "pairs: --margin must be a finite number, found inf"
    options = argparse.Namespace(failure_budget=0.05, failure_min_count=0)
    with open_journal(tmp_path / "r.jsonl") as journal:
        sentence = exit_of(lambda: Recorder(journal, [], options, "test"))
    assert sentence.startswith("pairs: expected share in [0, 1] and min_count >= 1")


def test_a_fault_of_a_library_keeps_its_traceback():
    with pytest.raises(ValueError, match="Expecting value"):
        command.run(lambda: json.loads("junk"))
