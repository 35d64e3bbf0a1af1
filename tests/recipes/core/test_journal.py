"""The journal keeps whole lines, cuts torn ones, refuses what it cannot trust, and survives a real SIGKILL."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.core.journal import Journal, read_records, read_settings
from recipes.errors import JournalError

SETTINGS = {"seed": 1}


def write(path, *names, settings=None):
    with Journal(path, settings, key="key") as journal:
        journal.extend({"key": name, "text": f"line\nbreak {name}"} for name in names)


def names(path, **options):
    return [record["key"] for record in read_records([path], key="key", **options)]


def texts(path):
    with Journal(path, SETTINGS) as journal:
        return [record["text"] for record in journal.records()]


def test_append_and_resume(tmp_path):
    path = tmp_path / "deep" / "j.jsonl"
    write(path, "a", "b", settings=SETTINGS)
    with Journal(path, SETTINGS, key="key") as journal:
        assert "a" in journal and "c" not in journal and len(journal) == 2
        journal.append({"key": "c"})
        assert "c" in journal and len(journal) == 3
        with pytest.raises(ValueError, match="already holds a record 'b'"):
            journal.append({"key": "b"})
    assert names(path) == ["a", "b", "c"]
    assert read_settings(path) == SETTINGS


@pytest.mark.parametrize("record", [{}, {"key": 3}, {"key": "n", "x": float("nan")}, {"key": "n", "x": object()}])
def test_records_that_cannot_be_written_leave_no_trace(tmp_path, record):
    path = tmp_path / "j.jsonl"
    with Journal(path, key="key") as journal:
        with pytest.raises((ValueError, TypeError)):
            journal.extend([{"key": "good"}, record])
        assert path.read_bytes() == b"" and "good" not in journal
        with pytest.raises(ValueError, match="already holds"):
            journal.extend([{"key": "twice"}, {"key": "twice"}])
        assert path.read_bytes() == b""


def test_any_text_survives_in_a_file_that_is_valid_utf_8(tmp_path):
    text = 'line\nbreak \u2028 é \ud83d lone surrogate "quoted" \x00'
    with Journal(tmp_path / "j.jsonl") as journal:
        journal.append({"text": text})
        journal.append({"text": "é"})
    assert [record["text"] for record in read_records([tmp_path / "j.jsonl"])] == [text, "é"]
    assert "é" in (tmp_path / "j.jsonl").read_text(encoding="utf-8")


@given(st.lists(st.text(st.characters(), max_size=20), max_size=4), st.data())
def test_a_kill_at_any_byte_loses_at_most_the_record_being_written(tmp_path_factory, written, data):
    path = tmp_path_factory.mktemp("journal") / "j.jsonl"
    with Journal(path, SETTINGS) as journal:
        header = path.stat().st_size
        for text in written:
            journal.append({"text": text})
    whole = path.read_bytes()
    cut = data.draw(st.integers(header, len(whole)))
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n") - 1
    assert texts(path) == written[:kept]
    with Journal(path, SETTINGS) as journal:
        journal.append({"text": "next"})
    assert texts(path) == [*written[:kept], "next"]


def test_a_kill_in_the_very_first_write_starts_again(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"settings": {"se')
    assert texts(path) == []
    assert json.loads(path.read_text()) == {"settings": SETTINGS}


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path, SETTINGS) as journal:
        journal.append({"text": "whole"})
    with path.open("ab") as file:
        file.write(b'{"text": "' + b"x" * 3_000_000)
    assert texts(path) == ["whole"]


def test_a_corrupt_line_is_named(tmp_path):
    path = tmp_path / "j.jsonl"
    write(path, "a", "b", "c")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + '{"key": "b", "te\n' + lines[2])
    with pytest.raises(JournalError, match=r"j\.jsonl, line 2 is corrupt"):
        Journal(path, key="key")


@pytest.mark.parametrize("line", ["[1]", '{"id": "x"}', "\x00\x00", '"key"', '{"key": null}', '{"settings": 3}'])
def test_lines_that_are_no_records(tmp_path, line):
    path = tmp_path / "j.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(JournalError, match="line 1"):
        names(path)


def test_a_line_of_settings_further_down_is_no_header(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text('{"settings": {}}\n{"settings": {}}\n')
    assert list(read_records([path])) == [{"settings": {}}]


def test_a_last_line_without_a_line_break(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}')
    with pytest.raises(JournalError, match="no line break"):
        list(read_records([path]))
    assert list(read_records([path], torn_end=True)) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a": ')
    assert list(read_records([path], torn_end=True)) == [{"a": 1}]
    path.write_text('{"a": \n{"a": 2}')
    with pytest.raises(JournalError, match="line 1"):
        list(read_records([path], torn_end=True))


def test_repeated_keys_are_refused(tmp_path):
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    write(one, "a")
    write(two, "b", "a")
    with pytest.raises(JournalError, match=r"two\.jsonl, line 2 repeats the key 'a' of .*one\.jsonl, line 1"):
        list(read_records([one, two], key="key"))


def test_other_settings_are_refused_by_name(tmp_path):
    path = tmp_path / "j.jsonl"
    Journal(path, {"temperature": 0.8, "n": (1, 2), "judge": "a"}).close()
    Journal(path, {"temperature": 0.8, "n": [1, 2], "judge": "a"}).close()
    with pytest.raises(JournalError, match=r"other settings \(judge was 'a', now 'b', temperature was 0.8, now 1.0\)"):
        Journal(path, {"temperature": 1.0, "n": [1, 2], "judge": "b"})


def test_records_of_unknown_settings_are_refused(tmp_path):
    path = tmp_path / "j.jsonl"
    write(path, "a")
    with pytest.raises(JournalError, match="does not begin with its settings"):
        Journal(path, SETTINGS)
    Journal(path).close()


def test_a_second_writer_is_refused(tmp_path):
    with Journal(tmp_path / "j.jsonl", SETTINGS), pytest.raises(JournalError, match="another process"):
        Journal(tmp_path / "j.jsonl", SETTINGS)
    Journal(tmp_path / "j.jsonl", SETTINGS).close()


def test_a_write_that_fails_half_way_is_taken_back(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path, key="key") as journal:
        journal.append({"key": "a"})
        before = path.read_bytes()
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        try:
            with pytest.raises(OSError):
                journal.append({"key": "b", "text": "x" * 5000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, former)
        assert path.read_bytes() == before and "b" not in journal
        journal.append({"key": "b"})
    assert names(path) == ["a", "b"]


WRITER = """
import sys
from recipes.core.journal import Journal
with Journal(sys.argv[1], {"n": 1}, key="key", sync=sys.argv[3]) as journal:
    for i in range(int(sys.argv[2])):
        if f"k{i}" not in journal:
            journal.append({"key": f"k{i}", "text": "x" * 3000})
"""


@pytest.mark.parametrize("sync", ["record", "close"])
def test_sigkill_then_the_same_command_completes_the_file(tmp_path, sync):
    path, count = tmp_path / "j.jsonl", 20_000
    command = [sys.executable, "-c", WRITER, str(path), str(count), sync]
    kills, rng = 0, random.Random(0)
    while kills < 3:
        process = subprocess.Popen(command)
        grown = time.monotonic() + 20
        size = path.stat().st_size if path.exists() else 0
        while time.monotonic() < grown and not (path.exists() and path.stat().st_size > size):
            time.sleep(0.01)
        time.sleep(rng.random() * 0.03)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    with Journal(path, {"n": 1}, key="key") as journal:
        done = len(journal)
    assert 0 < done < count, "the kills came too early or too late to show anything"
    subprocess.run([*command[:4], str(done + 50), sync], check=True, timeout=60)
    assert names(path) == [f"k{i}" for i in range(done + 50)]
    assert os.path.getsize(path) > 0
