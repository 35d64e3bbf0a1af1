"""Tasks of reasoning-gym as verl data: rows, the task's own score, and what is refused."""

import importlib.util
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "data_preparation" / "reasoning_gym_tasks.py"


@pytest.fixture(scope="module")
def tasks():
    spec = importlib.util.spec_from_file_location("reasoning_gym_tasks", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_the_package_it_says_which_extra(tasks, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    assert tasks.main(["letter_counting", "--output-dir", str(tmp_path)]) == 1
    assert "pip install -e '.[tasks]'" in capsys.readouterr().err


def test_rows_are_scored_by_their_task(tasks, tmp_path, capsys):
    """The extra `tasks` is not part of the tests' environment, as one of its dependencies is compiled."""
    pytest.importorskip("reasoning_gym")
    sizes = ["--train", "6", "--test", "3", "--output-dir", str(tmp_path)]
    assert tasks.main(["countdown", *sizes, "--set", "max_numbers=4"]) == 0
    train, test = (pq.read_table(tmp_path / f"{split}.parquet").to_pylist() for split in ("train", "test"))
    assert (len(train), len(test)) == (6, 3)
    assert not {row["prompt"][0]["content"] for row in train} & {row["prompt"][0]["content"] for row in test}
    for row in train:
        gold = row["reward_model"]["ground_truth"]
        right = tasks.json.loads(gold)["metadata"]["expression"]
        assert tasks.compute_score(row["data_source"], f"So <answer> {right} </answer>", gold) == 1.0
        assert tasks.compute_score(row["data_source"], f"{right}", gold) == 0.0
        assert tasks.compute_score(row["data_source"], "<answer>1</answer>", gold) < 0.1
    for wrong, told in (
        (["no_such_task"], "not registered"),
        (["countdown", "--set", "colour=4"], "colour"),
        (["arc_agi"], "before JSON"),
    ):
        assert tasks.main([*wrong, *sizes]) == 1
        assert told in capsys.readouterr().err
