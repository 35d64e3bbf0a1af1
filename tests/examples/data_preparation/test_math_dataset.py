"""The MATH preparation on a small local copy of the dataset's columns."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "data_preparation" / "math_dataset.py"


@pytest.fixture(scope="module")
def preparation():
    spec = importlib.util.spec_from_file_location("math_dataset", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def refusal(preparation, tmp_path, monkeypatch, capsys):
    """What the command says of a source that it refuses."""

    def refuse(source):
        arguments = ["--source", str(source), "--output-dir", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
        assert preparation.main() == 1
        return capsys.readouterr().err

    return refuse


def test_an_absent_source_is_one_sentence(tmp_path, refusal):
    told = refusal(tmp_path / "nowhere")
    assert told.startswith("error: ") and "nowhere" in told


def write_source(folder, train, test):
    folder.mkdir()
    for split, rows in (("train", train), ("test", test)):
        (folder / f"{split}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return folder


GOOD = [
    {"problem": "What is $1+1$?", "solution": "First \\boxed{3}, no: \\boxed{2}.", "level": "Level 1"},
    {"problem": "Halve it.", "solution": "So $\\boxed{\\frac{1}{2}}$.", "level": "Level 2"},
]


def test_rows_are_verls(tmp_path):
    source = write_source(tmp_path / "source", GOOD, GOOD[:1])
    output = tmp_path / "out"
    command = [sys.executable, str(SCRIPT), "--source", str(source), "--output-dir", str(output)]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert "2 rows" in run.stdout and "1 rows" in run.stdout
    assert sorted(path.name for path in output.iterdir()) == ["test.parquet", "train.parquet"]
    rows = pq.read_table(output / "train.parquet").to_pylist()
    assert [row["reward_model"] for row in rows] == [
        {"ground_truth": "2", "style": "rule"},
        {"ground_truth": "\\frac{1}{2}", "style": "rule"},
    ]
    assert rows[0]["data_source"] == "DigitalLearningGmbH/MATH-lighteval"
    assert rows[0]["prompt"] == [
        {
            "content": "What is $1+1$? Let's think step by step and output the final answer within \\boxed{}.",
            "role": "user",
        }
    ]
    assert rows[1]["extra_info"] == {"index": 1, "split": "train"}


def test_a_solution_without_an_answer_is_refused(tmp_path, refusal):
    source = write_source(tmp_path / "source", [GOOD[0], {"problem": "?", "solution": "It is 4."}], GOOD)
    assert "train row 1" in refusal(source)
    assert not list((tmp_path / "out").glob("train*"))


def test_a_missing_column_is_named(tmp_path, preparation):
    rows = [{"question": "?", "solution": "\\boxed{1}"}]
    source = write_source(tmp_path / "source", rows, rows)
    with pytest.raises(ValueError, match="no column problem"):
        preparation.prepare(str(source), tmp_path / "out")
