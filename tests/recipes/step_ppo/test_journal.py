"""Append-only files: resume, corruption, locks, and a real SIGKILL."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from recipes.step_ppo.journal import (
    CorruptJournal,
    Journal,
    JournalBusy,
    JournalMismatch,
    expand,
    main,
    read_records,
    write_atomically,
)


def write(path, *keys):
    with Journal(path) as journal:
        journal.extend({"key": key, "text": f"line\nbreak {key}"} for key in keys)


def keys(path, **options):
    return [record["key"] for record in read_records([path], **options)]


def test_append_and_resume(tmp_path):
    path = tmp_path / "deep" / "j.jsonl"
    write(path, "a", "b")
    with Journal(path) as journal:
        assert "a" in journal and "c" not in journal and len(journal) == 2
        journal.append({"key": "c"})
        with pytest.raises(ValueError, match="already holds"):
            journal.append({"key": "b"})
    assert keys(path) == ["a", "b", "c"]


@pytest.mark.parametrize("record", [{}, {"key": 3}, {"key": "n", "x": float("nan")}])
def test_records_that_cannot_be_written(tmp_path, record):
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal, pytest.raises(ValueError):
        journal.append(record)
    assert path.read_bytes() == b""


def test_unpaired_surrogates_survive(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        journal.append({"key": "a", "text": "\ud83d cut"})
    assert keys(path) == ["a"]


def test_every_cut_of_the_last_line_is_repaired(tmp_path):
    path = tmp_path / "j.jsonl"
    write(path, "a", "b")
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for size in range(last, len(whole)):
        path.write_bytes(whole[:size])
        with Journal(path) as journal:
            assert "b" not in journal
            journal.append({"key": "b", "text": "line\nbreak b"})
        assert path.read_bytes() == whole


def test_a_corrupt_line_is_named_and_skipped_only_when_asked(tmp_path):
    path = tmp_path / "j.jsonl"
    write(path, "a", "b", "c")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + '{"key": "b", "te\n' + lines[2])
    with pytest.raises(CorruptJournal, match=r"j\.jsonl:2 is corrupt"):
        Journal(path)
    with pytest.raises(CorruptJournal, match="--skip-corrupt"):
        keys(path)
    assert keys(path, skip_corrupt=True) == ["a", "c"]
    with Journal(path, skip_corrupt=True) as journal:
        assert "b" not in journal
        journal.append({"key": "b"})
    assert keys(path, skip_corrupt=True) == ["a", "c", "b"]


@pytest.mark.parametrize("line", ["[1]", '{"id": "x"}', "\x00\x00", '"key"', '{"key": null}'])
def test_lines_that_are_no_records(tmp_path, line):
    path = tmp_path / "j.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(CorruptJournal, match=":1"):
        keys(path)


def test_doubled_keys_are_always_refused(tmp_path):
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    write(one, "a")
    write(two, "b", "a")
    with pytest.raises(CorruptJournal, match=r"two\.jsonl:2 repeats the key 'a' of .*one\.jsonl:1"):
        list(read_records([one, two], skip_corrupt=True))


def test_other_options_are_refused(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path, options={"temperature": 0.8, "n": (1, 2)}) as journal:
        journal.append({"key": "a"})
    Journal(path, options={"temperature": 0.8, "n": [1, 2]}).close()
    with pytest.raises(JournalMismatch, match="temperature: 0.8 then, 1.0 now"):
        Journal(path, options={"temperature": 1.0, "n": [1, 2]})
    os.remove(tmp_path / "j.jsonl.options.json")
    with pytest.raises(JournalMismatch, match="missing"):
        Journal(path, options={"temperature": 0.8})


def test_two_writers(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path), pytest.raises(JournalBusy):
        Journal(path)
    Journal(path).close()


def test_merge_command(tmp_path):
    for i in (0, 2, 10):
        write(tmp_path / f"s.{i}-of-11.jsonl", f"k{i}")
    out = tmp_path / "all.jsonl"
    main([str(tmp_path / "s.*-of-11.jsonl"), "--output", str(out)])
    main([str(tmp_path / "s.*-of-11.jsonl"), "--output", str(out)])
    assert keys(out) == ["k0", "k2", "k10"]
    with pytest.raises(FileNotFoundError, match="nothing"):
        expand([str(tmp_path / "nothing*")])


def test_atomic_replacement(tmp_path):
    write_atomically(tmp_path / "f", "one")
    write_atomically(tmp_path / "f", "two")
    assert (tmp_path / "f").read_text() == "two" and len(list(tmp_path.iterdir())) == 1


WRITER = """
import sys
from recipes.step_ppo.journal import Journal
with Journal(sys.argv[1], options={"n": 1}) as journal:
    for i in range(int(sys.argv[2])):
        if f"k{i}" not in journal:
            journal.append({"key": f"k{i}", "text": "x" * 3000})
"""


def test_sigkill_loses_and_doubles_nothing(tmp_path):
    path = tmp_path / "j.jsonl"
    path.touch()
    rng = random.Random(0)
    for _ in range(8):
        target = path.stat().st_size + rng.randint(1, 1_200_000)
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(10**9)])
        deadline = time.monotonic() + 60
        while path.stat().st_size < target and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.0005)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        # What a kill leaves is a prefix of the finished file, but for an unfinished last line.
        complete = [json.loads(line)["key"] for line in path.read_bytes().split(b"\n")[:-1]]
        assert complete == [f"k{i}" for i in range(len(complete))] and complete
    wanted = len(complete) + 500
    subprocess.run([sys.executable, "-c", WRITER, str(path), str(wanted)], check=True, timeout=120)
    assert keys(path) == [f"k{i}" for i in range(wanted)]
