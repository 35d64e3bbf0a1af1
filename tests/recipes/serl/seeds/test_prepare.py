"""The seed command, from files with known agreements."""

import json
from collections import Counter

import pyarrow.parquet
import pytest

from recipes.core.files import read_rows
from recipes.core.journal import read_records
from recipes.errors import DataError, EnvironmentProblem
from recipes.serl.seeds.prepare import balance_levels, filter_by_agreement, gold_answer, main
from reward_fns.completions import Answer, Completion


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def math(tmp_path):
    rows = [
        {"problem": f"Find ${i}+1$.", "level": f"Level {i % 5 + 1}", "solution": f"It is \\boxed{{{i + 1}}}."}
        for i in range(200)
    ]
    agreement = [{"idx": i, "question": row["problem"], "agreement": (i % 17) / 16} for i, row in enumerate(rows)]
    return write(tmp_path / "math.jsonl", rows), write(tmp_path / "known.jsonl", agreement)


def run(math, out, *more):
    source, agreement = math
    common = ["--source", str(source), "--val-source", str(source), "--agreement", str(agreement)]
    return main([*common, "--output-dir", str(out), *more])


def test_seeds_are_moderate_balanced_and_reproducible(tmp_path, math, capsys):
    assert run(math, tmp_path / "a", "--num", "50") == 0
    assert run(math, tmp_path / "b", "--num", "50") == 0
    seeds = read_rows(tmp_path / "a" / "seeds.jsonl", "problem")
    assert Counter(seed["level"] for seed in seeds) == {f"Level {i}": 10 for i in range(1, 6)}
    assert all(4 / 16 <= seed["agreement"] <= 12 / 16 for seed in seeds)
    assert [seed["idx"] for seed in seeds] == sorted({seed["idx"] for seed in seeds})
    assert (tmp_path / "a" / "seeds.jsonl").read_bytes() == (tmp_path / "b" / "seeds.jsonl").read_bytes()
    assert run(math, tmp_path / "c", "--num", "50", "--seed", "1") == 0
    assert (tmp_path / "a" / "seeds.jsonl").read_bytes() != (tmp_path / "c" / "seeds.jsonl").read_bytes()
    assert "seeds.jsonl: 50 rows" in capsys.readouterr().out


def test_parquet_is_what_verl_reads_with_a_level_of_its_own_in_validation(tmp_path, math):
    assert run(math, tmp_path / "a", "--num", "5", "--answer-template", "{question} Box it.") == 0
    val = pyarrow.parquet.read_table(tmp_path / "a" / "val.parquet").to_pylist()
    assert val[1]["data_source"] == "serl/math/level_2" and val[1]["reward_model"]["ground_truth"] == "\\boxed{2}"
    assert val[1]["prompt"] == [{"role": "user", "content": "Find $1+1$. Box it."}]
    train = pyarrow.parquet.read_table(tmp_path / "a" / "train.parquet").to_pylist()
    assert len(train) == 200 and {row["data_source"] for row in train} == {"serl/math"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--num", "500"], "500 seeds are asked for"),
        (["--question", "text"], "has no column 'text'; it has"),
        (["--answer-template", "no slot"], "must contain {question}"),
        (["--source", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["--low", "0.9", "--high", "0.1"], "0 <= low <= high <= 1"),
    ],
)
def test_bad_requests_end_with_one_sentence(tmp_path, math, capsys, more, message):
    assert run(math, tmp_path / "a", *more) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("prepare_seeds: ")


def test_agreements_of_other_questions_are_refused(tmp_path, math, capsys):
    write(math[1], [{"idx": i, "question": "other", "agreement": 0.5} for i in range(200)])
    assert run(math, tmp_path / "a") == 2
    assert "belongs to other questions" in capsys.readouterr().err


def test_agreement_is_asked_for(tmp_path, math, capsys):
    source = ["--source", str(math[0]), "--val-source", "", "--num", "9", "--output-dir"]
    assert main([*source, str(tmp_path / "a")]) == 2
    assert "give --model, --agreement, or --unfiltered" in capsys.readouterr().err
    assert main([*source, str(tmp_path / "b"), "--unfiltered"]) == 0
    assert not (tmp_path / "b" / "val.parquet").exists()


def test_gold_comes_from_answer_or_from_the_last_box():
    assert gold_answer({"answer": "\\frac{1}{2}", "solution": "\\boxed{3}"}) == "\\frac{1}{2}"
    assert gold_answer({"solution": "so \\boxed{1} or \\boxed{\\frac{1}{2}}"}) == "\\frac{1}{2}"
    assert gold_answer({"solution": "no box"}) == "" == gold_answer({})


def test_levels_with_few_rows_leave_their_share_to_the_others():
    rows = [{"level": level, "i": i} for i, level in enumerate("a" * 20 + "b" * 2 + "c" * 20)]
    assert Counter(row["level"] for row in balance_levels(rows, 12, level_key="level")) == {"a": 5, "b": 2, "c": 5}
    assert len(balance_levels(rows, 12, level_key=None)) == 12


def test_rows_without_a_level_and_levels_of_any_kind_are_levels():
    rows = [{"idx": i, "level": [1]} for i in range(4)] + [{"idx": i} for i in range(4, 8)]
    assert [row["idx"] < 4 for row in balance_levels(rows, 4, level_key="level")].count(True) == 2


@pytest.mark.parametrize("place", ["source", "agreement"])
def test_an_index_that_is_neither_number_nor_text_is_named(tmp_path, place, capsys):
    rows = {"source": [{"problem": "1+1?", "idx": 0}], "agreement": [{"idx": 0, "question": "1+1?", "agreement": 0.5}]}
    rows[place][0]["idx"] = {"a": 1}
    for name, content in rows.items():
        write(tmp_path / f"{name}.jsonl", content)
    files = ["--source", str(tmp_path / "source.jsonl"), "--agreement", str(tmp_path / "agreement.jsonl")]
    assert main([*files, "--val-source", "", "--num", "1", "--output-dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "idx" in error and "{'a': 1}" in error


def test_both_bounds_of_the_agreement_are_kept():
    rows = [{"idx": i} for i in range(17)]
    kept = filter_by_agreement(rows, {i: i / 16 for i in range(17)}, low=0.25, high=0.75)
    assert [row["idx"] for row in kept] == list(range(4, 13))
    with pytest.raises(ValueError, match="row 16"):
        filter_by_agreement(rows, {i: 0.5 for i in range(16)}, low=0.2, high=0.8)


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("x.jsonl", b"\n\n", "no rows"),
        ("x.jsonl", b'{"problem": "x"}\n{', "line 2"),
        ("x.jsonl", b'["x"]', "line 1"),
        ("x.jsonl", b'{"problem": "x"}\n{"question": "y"}', "row 2"),
        ("x.jsonl", b'{"problem": " "}', "row 1"),
        ("x.jsonl", b"\xff\xfe", "UTF-8"),
        ("x.csv", b"problem", "must end in"),
        ("x.parquet", b"not parquet", "readable parquet"),
    ],
)
def test_malformed_and_other_files_are_refused(tmp_path, name, content, place):
    (path := tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=place):
        read_rows(path, "problem")


def test_lines_may_hold_any_unicode_separator(tmp_path):
    (path := tmp_path / "x.jsonl").write_text('{"problem": "a\u2028b\x0bc"}\n'.replace("\x0b", "\\u000b"))
    assert read_rows(path, "problem")[0]["problem"] == "a\u2028b\x0bc"


class Engine:
    """Answers in vLLM's place; ends after `lives` requests, as a killed one does."""

    asked, lives = [], 120

    def __init__(self, model, template_kwargs): ...

    def generate(self, requests, sampling, on_done):
        for request in requests:
            if len(self.asked) == self.lives:
                raise EnvironmentProblem("the engine\nended")
            self.asked.append(request.key)
            right = 2 + int(request.key) % 15
            texts = ["\\boxed{7}"] * right + [f"\\boxed{{{i + 100}}}" for i in range(16 - right)]
            on_done(request, Answer([Completion(text) for text in texts]))


def test_a_killed_measurement_goes_on_and_is_not_taken_for_another_models(tmp_path, math, monkeypatch, capsys):
    monkeypatch.setattr("recipes.core.vllm_engine.VllmEngine", Engine)
    monkeypatch.setattr(Engine, "asked", [])
    (model := tmp_path / "model").mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"0" * 100)
    known = tmp_path / "agreement.jsonl"
    command = ["--source", str(math[0]), "--val-source", "", "--num", "20", "--output-dir", str(tmp_path), "--model"]
    assert main([*command, str(model)]) == 2 and capsys.readouterr().err == "prepare_seeds: the engine ended\n"
    known.write_text(known.read_text() + '{"idx": 120, "questi')
    monkeypatch.setattr(Engine, "lives", 200)
    assert main([*command, str(model)]) == 0 == main([*command, str(model)]) == main(command[:-1])
    assert Engine.asked == [str(i) for i in range(200)]
    assert [record["agreement"] for record in read_records([known])] == [(2 + i % 15) / 16 for i in range(200)]
    assert main([*command, "/no/such/model"]) == 2
    assert "made with other settings (model was" in capsys.readouterr().err
    (model / "model.safetensors").write_bytes(b"1" * 100)
    assert main([*command, str(model)]) == 2
    assert "made with other settings (weights was" in capsys.readouterr().err
