"""Record files of the stages, in shards or whole."""

import re

import pytest

from recipes.errors import DataError, JournalError
from recipes.step_ppo.pipeline.records import Scores, Trajectories, Value, expand, open_journal, read


def write(path, *keys):
    with open_journal(path, {"n": 1}) as journal:
        journal.extend({"key": key, "text": f"line\nbreak {key}"} for key in keys)


def test_shards_come_by_their_number(tmp_path):
    for number in (10, 2, 0):
        write(tmp_path / f"s.{number}-of-11.jsonl", str(number))
    found = expand([tmp_path / "s.*-of-11.jsonl"])
    assert [record["key"] for record in read(found)] == ["0", "2", "10"]
    with pytest.raises(FileNotFoundError, match="none"):
        expand([tmp_path / "none*"])


def test_a_key_that_stands_in_two_files_is_refused(tmp_path):
    write(tmp_path / "s.0-of-2.jsonl", "a", "b")
    write(tmp_path / "s.1-of-2.jsonl", "b")
    with pytest.raises(JournalError, match="repeats the key 'b'"):
        list(read(expand([tmp_path / "s.*-of-2.jsonl"])))


def test_the_output_of_another_stage_is_named(tmp_path):
    write(tmp_path / "states.jsonl", "7/0/1")
    assert len(list(read([tmp_path / "states.jsonl"]))) == 1
    with pytest.raises(DataError, match=r"states\.jsonl: record '7/0/1'\.id is not set: is this the output of another"):
        list(read([tmp_path / "states.jsonl"], Trajectories))


RIGHT = {"text": "a", "correct": True}
VALUE = {"id": "1", "response_index": 0, "prefix_length": 3, "value": 1, "num_completions": 3}


@pytest.mark.parametrize(
    ("kind", "record", "fault"),
    [
        (Trajectories, {"id": "1", "responses": "abc"}, "responses must be a valid list"),
        (Trajectories, {"id": "1", "responses": ["abc"]}, "responses.0 must be a valid dictionary"),
        (
            Trajectories,
            {"id": "1", "responses": [RIGHT, RIGHT | {"text": None}]},
            "responses.1.text must be a valid",
        ),
        (Trajectories, {"id": "1", "responses": [RIGHT | {"correct": 1}]}, "responses.0.correct must be a valid bool"),
        (Trajectories, {"id": 1, "responses": []}, "id must be a valid string, found 1"),
        (Value, VALUE | {"response_index": -1}, "response_index must be greater than or equal to 0"),
        (Value, VALUE | {"num_completions": 0}, "num_completions must be greater than or equal to 1"),
        (Scores, {"id": "1", "scores": [{"response_index": 0}]}, "scores.0.kinds is not set"),
    ],
)
def test_what_is_no_record_of_a_stage_is_named_by_file_record_and_field(kind, record, fault, tmp_path):
    with open_journal(tmp_path / "r.jsonl") as journal:
        journal.append({"key": "k"} | record)
    with pytest.raises(DataError, match=re.escape(f"r.jsonl: record 'k'.{fault}")):
        list(read([tmp_path / "r.jsonl"], kind))


def test_two_journals_joined_by_hand_are_read(tmp_path):
    write(tmp_path / "a.jsonl", "a")
    write(tmp_path / "b.jsonl", "b")
    joined = tmp_path / "joined.jsonl"
    joined.write_bytes((tmp_path / "a.jsonl").read_bytes() + (tmp_path / "b.jsonl").read_bytes())
    assert [record["key"] for record in read([joined])] == ["a", "b"]
