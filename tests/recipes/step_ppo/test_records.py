"""Record files of the stages: shards in order, their merge, the names that an earlier README gave."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.errors import DataError, JournalError
from recipes.step_ppo.pipeline import merge
from recipes.step_ppo.pipeline.records import expand, open_journal, read

REPOSITORY = Path(__file__).parents[3]


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


def test_merge_joins_shards_and_refuses_doubled_keys(tmp_path):
    write(tmp_path / "s.0-of-2.jsonl", "a", "b")
    write(tmp_path / "s.1-of-2.jsonl", "c")
    out = tmp_path / "all.jsonl"
    for _ in range(2):
        merge.main([str(tmp_path / "s.*-of-2.jsonl"), "--output", str(out)])
        assert [record["key"] for record in read([out])] == ["a", "b", "c"]
    write(tmp_path / "again.jsonl", "c")
    with pytest.raises(JournalError, match="repeats the key 'c'"):
        merge.main([str(tmp_path / "*.jsonl"), "--output", str(tmp_path / "doubled.jsonl")])


def test_the_output_of_another_stage_is_named(tmp_path):
    write(tmp_path / "states.jsonl", "7/0/1")
    assert len(list(read([tmp_path / "states.jsonl"], "text"))) == 1
    with pytest.raises(DataError, match=r"'7/0/1' of .*states\.jsonl has no 'responses'"):
        list(read([tmp_path / "states.jsonl"], "text", "responses"))


@pytest.mark.parametrize("name", ["collect", "states", "journal"])
def test_an_earlier_name_of_a_stage_runs_it_and_says_the_new_one(name):
    new = {"journal": "merge"}.get(name, name)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", f"recipes.step_ppo.{name}", "--help"], env=environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and f"usage: python -m recipes.step_ppo.pipeline.{new}" in done.stdout
    assert done.stderr.strip().endswith(f"is now python -m recipes.step_ppo.pipeline.{new}")


def test_the_earlier_path_of_the_data_set_is_its_class():
    with pytest.warns(DeprecationWarning, match="adapters.sft_dataset"):
        from recipes.step_ppo import sft_dataset
    from recipes.step_ppo.adapters.sft_dataset import ContinuationDataset

    assert sft_dataset.ContinuationDataset is ContinuationDataset
