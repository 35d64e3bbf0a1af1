"""The DeepScaleR preparation on small local copies of the datasets' columns."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "data_preparation" / "deepscaler.py"
COLUMNS = {
    "deepscaler": ("problem", "answer"),
    "amc": ("question", "answer"),
    "aime24": ("Problem", "Answer"),
    "aime25": ("problem", "answer"),
    "aime26": ("problem", "answer"),
    "minerva": ("question", "answer"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for name, (question, answer) in COLUMNS.items():
        rows = [{question: f"{name} {i}?", answer: i} for i in range(40 if name == "deepscaler" else 3)]
        if name == "deepscaler":
            rows = [{question: row[question], answer: "" if i == 7 else str(i)} for i, row in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return folder


def prepare(sources, output, *arguments):
    replaced = [item for name in COLUMNS for item in ("--source", f"{name}={sources / name}.jsonl")]
    command = [sys.executable, str(SCRIPT), "--output-dir", str(output), "--held-out", "10", *replaced, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250)


def test_files_are_verls_and_held_out_rows_are_apart(sources, tmp_path):
    run = prepare(sources, tmp_path / "out")
    assert run.returncode == 0, run.stderr
    files = {path.stem: pq.read_table(path).to_pylist() for path in (tmp_path / "out").iterdir()}
    assert {name: len(rows) for name, rows in files.items()} == {
        "train": 29,
        "heldout": 10,
        "amc": 3,
        "aime": 9,
        "minerva": 3,
    }
    indices = [row["extra_info"]["index"] for name in ("train", "heldout") for row in files[name]]
    assert sorted(indices) == [i for i in range(40) if i != 7]
    for row in files["train"]:
        i = row["extra_info"]["index"]
        assert row["reward_model"] == {"style": "rule", "ground_truth": str(i)}
        assert (
            row["prompt"][0]["content"].startswith(f"deepscaler {i}?\n\n")
            and "\\boxed{}" in row["prompt"][0]["content"]
        )
    assert [row["data_source"] for row in files["aime"]] == ["aime24"] * 3 + ["aime25"] * 3 + ["aime26"] * 3
    assert [row["extra_info"]["index"] for row in files["aime"]] == list(range(9))


def test_the_amc_file_is_what_the_evaluation_prepares(sources, tmp_path):
    from recipes.evaluation import benchmark_rows
    from recipes.evaluation import prepare as evaluation

    rows = [
        {
            "data_source": "amc",
            "prompt": [{"role": "user", "content": f"What is {n} + {n}?{benchmark_rows._TANDEM_INSTRUCTION}"}],
            "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
            "extra_info": {"index": n},
        }
        for n in range(121)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "source.parquet")
    evaluation.prepare("amc23_25", tmp_path / "benchmarks", tmp_path / "source.parquet")
    run = prepare(sources, tmp_path / "out", "--amc-file", str(tmp_path / "benchmarks" / "amc23_25.jsonl"))
    assert run.returncode == 0, run.stderr
    written = pq.read_table(tmp_path / "out" / "amc.parquet").to_pylist()
    asked = [row["prompt"][0]["content"] for row in written]
    assert all(text.startswith(f"What is {n} + {n}?\n\n") and text.count("boxed") == 1 for n, text in enumerate(asked))
    assert [row["reward_model"] for row in written] == [row["reward_model"] for row in rows]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--source", "nowhere=x"], "expected NAME=ID"),
        (["--amc-file", "/no/such.jsonl"], "does not exist"),
        (["--held-out", "39"], "39 rows cannot give 39 held-out"),
    ],
)
def test_what_cannot_be_is_one_sentence(sources, tmp_path, arguments, sentence):
    run = prepare(sources, tmp_path / "out", *arguments)
    assert run.returncode == 1
    assert (
        run.stderr.splitlines()[-1].startswith("error: ") and sentence in run.stderr and "Traceback" not in run.stderr
    )
