"""Journals, beside the state of a checkpoint, survive SIGKILL at any moment."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from recipes.errors import JournalError
from recipes.serl.sources import Journal


def test_a_line_holds_what_the_writer_knows(tmp_path):
    journal = Journal(tmp_path / "new" / "folder")
    journal.write("filtered_data", 3, idx=7, prompt="Find é \ud800 x", reason="too_easy", agreement=0.875)
    journal.write("filtered_data", 3, idx=None, prompt="no", reason="too_short")
    assert journal.read("filtered_data", 3) == [
        {"idx": 7, "prompt": "Find é \ud800 x", "step": 3, "reason": "too_easy", "agreement": 0.875},
        {"idx": None, "prompt": "no", "step": 3, "reason": "too_short"},
    ]
    assert journal.read("expired_data", 3) == []
    with pytest.raises(ValueError, match="keep_train_data"):
        journal.write("kept", 3, idx=0, prompt="x")


def test_a_journal_is_set_back_and_nothing_is_lost(tmp_path):
    journal = Journal(tmp_path)
    (tmp_path / "notes.jsonl").write_text("mine")
    journal.write("keep_train_data", 1, idx=0, prompt="a")
    offsets = journal.sync()
    journal.write("keep_train_data", 1, idx=1, prompt="b")
    journal.write("filtered_data", 2, idx=2, prompt="c")
    journal.set_back(offsets)
    assert [record["idx"] for record in journal.read("keep_train_data", 1)] == [0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["keep_train_data_1.jsonl", "notes.jsonl", "set_aside_1"]
    aside = Journal(tmp_path / "set_aside_1")
    assert [record["idx"] for record in aside.read("keep_train_data", 1)] == [0, 1]
    assert [record["idx"] for record in aside.read("filtered_data", 2)] == [2]
    assert journal.set_back(offsets) is None, "nothing is left to move"


def test_a_start_without_checkpoint_keeps_what_another_run_wrote(tmp_path):
    for number in (1, 2):
        journal = Journal(tmp_path)
        journal.write("filtered_data", 1, idx=number, prompt="a")
        assert journal.set_back({}) == tmp_path / f"set_aside_{number}"
        assert journal.sync() == {}
        assert [record["idx"] for record in Journal(tmp_path / f"set_aside_{number}").read("filtered_data", 1)] == [
            number
        ]


def test_a_journal_shorter_than_the_checkpoint_says_is_refused(tmp_path):
    journal = Journal(tmp_path)
    journal.write("expired_data", 1, idx=0, prompt="a")
    offsets = journal.sync()
    path = tmp_path / "expired_data_1.jsonl"
    path.write_text("")
    with pytest.raises(JournalError, match="has 0 bytes"):
        journal.set_back(offsets)
    path.unlink()
    with pytest.raises(JournalError, match="is missing"):
        journal.set_back(offsets)


CHILD = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from recipes.core import state as checkpoint
    from recipes.serl.sources import Journal
    from recipes.serl.pool import InstructionPool

    folder, last = Path(sys.argv[1]), int(sys.argv[2])
    seeds = [f"seed {i} topic{i} thing{i} place{i}" for i in range(12)]
    pool, journal, step = InstructionPool(seeds, scope="history"), Journal(folder / "journal"), 0
    tracker = folder / "state.json"
    if tracker.exists():
        state = checkpoint.load(tracker)
        pool.load_state_dict(state["pool"])
        journal.set_back(state["journal"])
        step = state["step"]
    else:
        journal.set_back({})
    while step < last:
        step += 1
        examples = pool.draw_examples(step=step, call=0, prompt=0)
        for i in range(40):
            text = " ".join(f"{word}{(step * i) % 11}" for word in examples[i % 8].split())
            instruction, similarity = pool.offer(text)
            if instruction is None:
                journal.write("filtered_data", step, idx=None, prompt=text, similarity=similarity)
        taken = pool.pop(8)
        for instruction in taken:
            journal.write("keep_train_data", step, idx=instruction.idx, prompt=instruction.text)
        pool.add_few_shot(instruction.text for instruction in taken)
        for instruction in pool.end_step():
            journal.write("expired_data", step, idx=instruction.idx, prompt=instruction.text)
        if step % 3 == 0 or step == last:
            checkpoint.save(tracker, {"step": step, "pool": pool.state_dict(), "journal": journal.sync()})
        print(step, flush=True)
    """
)


def start(folder, last):
    command = [sys.executable, "-c", CHILD, str(folder), str(last)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def snapshot(folder):
    files = {path.name: path.read_bytes() for path in (folder / "journal").iterdir() if path.is_file()}
    return files, json.loads((folder / "state.json").read_text().splitlines()[1])


def test_a_killed_run_resumes_and_ends_as_an_uninterrupted_one(tmp_path):
    last, whole, killed = 30, tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    out, err = start(whole, last).communicate(timeout=120)
    assert int(out.split()[-1]) == last, err
    kills = 0
    for delay in (0.0, 0.004, 0.011, 0.017, 0.003, 0.023, 0.009):
        child = start(killed, last)
        first = child.stdout.readline()
        if not first:
            break
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=60)
        kills += child.returncode == -signal.SIGKILL
    assert kills >= 3
    out, err = start(killed, last).communicate(timeout=120)
    assert snapshot(killed) == snapshot(whole), err


def test_a_torn_last_line_is_cut_off(tmp_path):
    journal = Journal(tmp_path)
    journal.write("filtered_data", 1, idx=0, prompt="a")
    offsets = journal.sync()
    with open(tmp_path / "filtered_data_1.jsonl", "ab") as file:
        file.write(b'{"idx": 1, "pro')
        os.fsync(file.fileno())
    journal.set_back(offsets)
    assert [record["idx"] for record in journal.read("filtered_data", 1)] == [0]
