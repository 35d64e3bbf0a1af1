"""`python -m reward_fns.check_dataset`: offenders are listed, sound sets pass, wrong files are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from score_cases import read_table

from reward_fns.check_dataset import check, main

ROOT = Path(__file__).parents[2]
SOUND = [
    "42",
    r"\frac{\sqrt2}{2}",
    r"12\pi",
    "(1,2)",
    r"\text{east}",
    "1,234",
    "x>3",
    r"\begin{pmatrix}1\\2\end{pmatrix}",
]
UNSOUND = [None, "", r"\frac{1}{", "5^{5^{5^{5}}}"]


def write(path, golds):
    rows = [{"data_source": "d", "reward_model": {"style": "rule", "ground_truth": gold}} for gold in golds]
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_a_sound_file_passes(tmp_path, capsys):
    write(tmp_path / "a.parquet", SOUND)
    assert main([str(tmp_path / "a.parquet")]) == 0
    assert "8 gold answers, 0 do not" in capsys.readouterr().out


def test_offenders_are_listed_as_a_command(tmp_path):
    write(tmp_path / "b.parquet", SOUND + UNSOUND)
    done = subprocess.run(
        [sys.executable, "-m", "reward_fns.check_dataset", str(tmp_path / "b.parquet"), "--time-limit", "4"],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert "12 gold answers, 4 do not" in done.stdout
    for row in range(8, 12):
        assert f"row {row}:" in done.stdout


def test_json_lines_and_another_key(tmp_path, capsys):
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"answer": gold}) + "\n" for gold in SOUND))
    assert main([str(path), "--key", "answer"]) == 0
    assert main([str(path), "--key", "label"]) == 2
    assert "--key" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"not a parquet file"])
def test_what_cannot_be_read_is_said(tmp_path, capsys, content):
    path = tmp_path / "d.parquet"
    if content is not None:
        path.write_bytes(content)
    assert main([str(path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_texts_may_hold_any_character(tmp_path, capsys):
    """JSON allows the line separators of Unicode in a string; they do not end its line."""
    path = tmp_path / "e.jsonl"
    path.write_text('{"answer": "42", "question": "one\u2028two\x85three"}\n', encoding="utf-8")
    assert main([str(path), "--key", "answer"]) == 0
    row = {"gold": "42", "response": "one\u2028two \\boxed{42}", "expected": 1.0}
    path.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    assert read_table(path) == [row]


@pytest.mark.parametrize("content", ["5", "null", '{"answer": "42"}'])
def test_json_that_is_no_list_is_refused(tmp_path, capsys, content):
    path = tmp_path / "f.json"
    path.write_text(content)
    assert main([str(path)]) == 2
    assert "expected a list of rows" in capsys.readouterr().err


@pytest.mark.parametrize("limit", [["--workers", "0"], ["--time-limit", "0"], ["--time-limit", "nan"]])
def test_limits_that_are_none_are_refused(tmp_path, capsys, limit):
    write(tmp_path / "a.parquet", SOUND)
    with pytest.raises(SystemExit):
        main([str(tmp_path / "a.parquet"), *limit])
    assert "must be positive" in capsys.readouterr().err


def test_alternatives_are_checked_each():
    offenders = check([["42", r"\frac{1}{"], ["42", "43"]])
    assert [offender.row for offender in offenders] == [0]
