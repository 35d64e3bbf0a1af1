"""The journal keeps whole lines, cuts torn ones, and refuses what it cannot trust."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.pasodoble.sft_journal import Journal, JournalError

SETTINGS = {"seed": 1}


def events_after_reopening(path):
    with Journal(path, SETTINGS) as journal:
        return journal.events


@given(st.lists(st.text(), max_size=4), st.data())
def test_a_kill_at_any_byte_loses_at_most_the_event_being_written(tmp_path_factory, texts, data):
    path = tmp_path_factory.mktemp("journal") / "j.jsonl"
    with Journal(path, SETTINGS) as journal:
        header = path.stat().st_size
        for text in texts:
            journal.append({"text": text})
    whole = path.read_bytes()
    cut = data.draw(st.integers(header, len(whole)))
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n") - 1
    assert [event["text"] for event in events_after_reopening(path)] == texts[:kept]
    with Journal(path, SETTINGS) as journal:
        journal.append({"text": "next"})
    assert [event["text"] for event in events_after_reopening(path)] == [*texts[:kept], "next"]


def test_a_kill_in_the_very_first_write_starts_again(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"settings": {"se')
    assert events_after_reopening(path) == []
    assert json.loads(path.read_text()) == {"settings": SETTINGS}


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path, SETTINGS) as journal:
        journal.append({"text": "whole"})
    with path.open("ab") as file:
        file.write(b'{"text": "' + b"x" * 3_000_000)
    assert events_after_reopening(path) == [{"text": "whole"}]


def test_damage_before_the_end_is_refused(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text('{"settings": {"seed": 1}}\n{"text": \n{"text": "b"}\n')
    with pytest.raises(JournalError, match="damaged in line 2"):
        Journal(path, SETTINGS)


def test_other_settings_are_refused_by_name(tmp_path):
    Journal(tmp_path / "j.jsonl", {"seed": 1, "judge": "a"}).close()
    with pytest.raises(JournalError, match="judge was 'a', now 'b'"):
        Journal(tmp_path / "j.jsonl", {"seed": 1, "judge": "b"})


def test_a_second_writer_is_refused(tmp_path):
    with Journal(tmp_path / "j.jsonl", SETTINGS), pytest.raises(JournalError, match="another process"):
        Journal(tmp_path / "j.jsonl", SETTINGS)
    assert events_after_reopening(tmp_path / "j.jsonl") == []
