"""The store of responses: other settings are refused, and a killed process loses no finished problem."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from recipes.errors import JournalError
from recipes.evaluation.sample_store import SampledResponse, SampleStore, read_samples

ROOT = Path(__file__).parents[3]
SETTINGS = {"model": "m", "sampling": {"n": 2}}


def samples(problem, n=2):
    return [SampledResponse(problem, number, f"answer {number}", 3, "stop", 5) for number in range(n)]


def test_finished_problems_are_found_again(tmp_path):
    store = SampleStore(tmp_path / "a" / "r.jsonl", SETTINGS, 2)
    store.add("p1", samples("p1"))
    store.add("p2", samples("p2"))
    with pytest.raises(JournalError, match="being written by another process"):
        SampleStore(store.path, SETTINGS, 2)
    store.close()
    assert SampleStore(store.path, SETTINGS, 2).finished == {"p1": samples("p1"), "p2": samples("p2")}


def test_other_settings_are_refused_and_named(tmp_path):
    SampleStore(tmp_path / "r.jsonl", SETTINGS, 2).close()
    with pytest.raises(JournalError, match=r"other settings \(model was 'm', now 'other'\)"):
        SampleStore(tmp_path / "r.jsonl", SETTINGS | {"model": "other"}, 2)


def test_unfinished_problems_and_a_cut_line_are_dropped(tmp_path):
    store = SampleStore(tmp_path / "r.jsonl", SETTINGS, 2)
    store.add("p1", samples("p1"))
    store.close()
    with store.path.open("a") as stream:
        stream.write(json.dumps({"problem": "p2", "sample": 0, "response": "", "tokens": 0, "finish_reason": "x"}))
        stream.write('\n{"problem": "p2", "sam')
    again = SampleStore(store.path, SETTINGS, 2)
    assert list(again.finished) == ["p1"]
    again.add("p2", samples("p2"))
    again.close()
    settings, found = read_samples(store.path)
    assert settings == SETTINGS
    assert [(sample.problem, sample.sample) for sample in found] == [
        ("p1", 0),
        ("p1", 1),
        ("p2", 0),
        ("p2", 0),
        ("p2", 1),
    ]
    assert SampleStore(store.path, SETTINGS, 2).finished == {"p1": samples("p1"), "p2": samples("p2")}


def test_a_damaged_line_in_the_middle_is_refused(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"settings": {}}\nnonsense\n{"settings": {}}\n')
    with pytest.raises(JournalError, match="line 2"):
        SampleStore(tmp_path / "r.jsonl", {}, 1)


@pytest.mark.parametrize("fault", [{"tokens": "many"}, {"sample": -1}, {"sample": "first"}])
def test_a_line_with_values_of_another_kind_is_refused(tmp_path, fault):
    row = {"problem": "0", "sample": 0, "response": "x", "tokens": 1, "finish_reason": "stop"} | fault
    (tmp_path / "r.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(JournalError, match="no sample"):
        read_samples(tmp_path / "r.jsonl")


def test_only_all_samples_of_the_problem_are_taken(tmp_path):
    store = SampleStore(tmp_path / "r.jsonl", SETTINGS, 2)
    for wrong in (samples("p1", 1), samples("p2"), list(reversed(samples("p1")))):
        with pytest.raises(ValueError, match="expected samples 0 to 1"):
            store.add("p1", wrong)


def test_any_text_survives(tmp_path):
    text = 'line\nbreak \u2028 \ud800 lone surrogate "quoted" \x00'
    store = SampleStore(tmp_path / "r.jsonl", SETTINGS, 1)
    store.add("p", [SampledResponse("p", 0, text, 1, "stop")])
    store.close()
    assert SampleStore(store.path, SETTINGS, 1).finished["p"][0].response == text


def test_sigkill_while_writing_loses_no_finished_problem(tmp_path):
    code = f"""
        from recipes.evaluation.sample_store import SampledResponse, SampleStore
        store = SampleStore({str(tmp_path / "r.jsonl")!r}, {SETTINGS!r}, 2)
        for number in range(10**9):
            name = f"p{{number}}"
            store.add(name, [SampledResponse(name, i, "x" * 5000, 1, "stop") for i in range(2)])
            if number == 200:
                print("go", flush=True)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout.readline() == "go\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    store = SampleStore(tmp_path / "r.jsonl", SETTINGS, 2)
    assert list(store.finished) == [f"p{number}" for number in range(len(store.finished))]
    assert len(store.finished) > 200
