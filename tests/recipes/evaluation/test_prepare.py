"""Every benchmark from rows in the shape of its public source to a checked folder and back, without network."""

import http.server
import json
import threading
from functools import partial

import pytest
from source_rows import rows

from recipes.errors import DataError
from recipes.evaluation import benchmark_rows, benchmarks, prepare, prompts
from recipes.evaluation.benchmarks import Problem
from recipes.evaluation.grade import faulty_golds
from recipes.evaluation.main import main as evaluate_main
from recipes.evaluation.prompts import PromptOptions


def write_rows(path, found):
    path.write_text("\n".join(map(json.dumps, found)))
    return path


def manifest(folder, name):
    return json.loads((folder / f"{name}.manifest.json").read_text())


LARGE = {"supergpqa", "mmlu_pro"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in LARGE else ()) for name in benchmarks.benchmark_names()],
)
def test_a_benchmark_is_prepared_from_its_source_and_read_back_as_it_was(name, tmp_path):
    card = benchmarks.describe(name)
    count = card["count"] or 40
    given = write_rows(tmp_path / f"{name}.jsonl", rows(name, count))
    folder = tmp_path / "prepared"
    assert prepare.main([name, "--from", str(given), "--to", str(folder)]) == 0
    found = manifest(folder, name)
    assert (found["count"], found["faulty_golds"]) == (count, {})
    assert found["sha256"] == benchmarks.file_checksum(folder / f"{name}.jsonl")
    assert "revision" not in found, "a given file is not known to be the pinned revision"
    raw = benchmarks.load(name, str(given))
    again = benchmarks.load(name, data_dir=folder)
    assert again.problems == raw.problems
    assert again.fingerprint == raw.fingerprint
    assert again.source["sha256"] == found["sha256"]
    text = prompts.question_text(again.problems[3], again, PromptOptions())
    assert again.problems[3].question in text
    assert not any("{" + field + "}" in text for field in ("question", "options", "text", "context", "title", "table"))


def test_the_questions_of_irregular_sources():
    read = {name: benchmark_rows.READERS[name](rows(name, 3)[2]) for name in ("asdiv", "svamp", "carp_en", "mawps")}
    assert read["asdiv"]["question"] == "There are 2 red and 2 green apples. How many apples are there?"
    assert read["asdiv"]["answer"] == "4"
    assert read["svamp"]["question"] == "Ann has 2 pens and 2 pencils. How many things does she have?"
    assert (read["carp_en"]["question"], read["carp_en"]["answer"]) == ("Compute $x=2+2$.", "4")
    assert read["mawps"]["answer"] == "4"
    table = benchmark_rows.tabmwp(rows("tabmwp", 3)[1])
    assert table["question"].startswith('Read the following table regarding "Prices" and answer a question:\npen | ')
    assert table["answer"] == "2101"
    choice = benchmark_rows.tabmwp(rows("tabmwp", 3)[2])
    assert choice["question"].endswith("Please select from the following options: ['2002', '7']")
    stem = benchmark_rows.mmlu_stem(rows("mmlu_stem", 3)[2])
    assert (stem["question"], stem["answer"]) == ("What is 2?\nAnswer Choices: (A) 4 (B) 5 (C) 6 (D) 7", "C")
    assert (
        benchmark_rows.READERS["without_dollars"]({"question": "Is it?", "answer": "$Yes$"})["question"]
        == "Is it? (Yes or No)"
    )
    assert benchmark_rows.tandem(rows("olympiad_581", 3)[2])["question"] == "What is 2 + 2?"


def test_the_options_of_gpqa_are_mixed_by_the_record_alone():
    asked = rows("gpqa_diamond", 60)
    found = [benchmark_rows.gpqa(row) for row in asked]
    assert found == [benchmark_rows.gpqa(row) for row in asked]
    assert {row["answer"] for row in found} == set("ABCD")
    for source, row in zip(asked, found, strict=True):
        assert row["options"]["ABCD".index(row["answer"])] == source["Correct Answer"].strip()


def test_rows_of_another_source_are_refused_in_a_sentence(tmp_path):
    given = write_rows(tmp_path / "s.jsonl", [{"question": "?", "answer": 1}])
    with pytest.raises(DataError, match=r"svamp: a row has not the columns .* found answer, question"):
        benchmarks.load("svamp", str(given))
    plain = [{"prompt": [{"content": "What?"}], "reward_model": {"ground_truth": "1"}}]
    with pytest.raises(DataError, match="expected each prompt to end in"):
        benchmarks.load("olympiad_581", str(write_rows(tmp_path / "o.jsonl", plain)))


def test_a_wrong_count_and_another_source_than_before_are_refused(tmp_path, capsys):
    folder = tmp_path / "prepared"
    arguments = ["aime25", "--to", str(folder), "--from"]
    assert prepare.main([*arguments, str(write_rows(tmp_path / "a.jsonl", rows("aime25", 29)))]) == 1
    assert "expected 30 problems, found 29" in capsys.readouterr().err
    assert not folder.exists()
    assert prepare.main([*arguments, str(write_rows(tmp_path / "b.jsonl", rows("aime25", 30)))]) == 0
    before = manifest(folder, "aime25")
    changed = [row | {"answer": "1"} for row in rows("aime25", 30)]
    assert prepare.main([*arguments, str(write_rows(tmp_path / "c.jsonl", changed))]) == 1
    assert "other problems than those prepared" in capsys.readouterr().err
    assert manifest(folder, "aime25") == before


def test_a_changed_prepared_file_is_refused(tmp_path, capsys):
    folder = tmp_path / "prepared"
    given = write_rows(tmp_path / "a.jsonl", rows("aime25", 30))
    prepare.main(["aime25", "--to", str(folder), "--from", str(given)])
    assert prepare.main(["aime25", "--to", str(folder), "--check"]) == 0
    path = folder / "aime25.jsonl"
    path.write_text(path.read_text().replace('"gold": "2"', '"gold": "3"'))
    with pytest.raises(DataError, match="not the file that its manifest describes"):
        benchmarks.load("aime25", data_dir=folder)
    assert prepare.main(["aime25", "--to", str(folder), "--check"]) == 1
    assert "not the file" in capsys.readouterr().err


def test_faulty_gold_answers_are_named(tmp_path, capsys):
    found = rows("aime25", 30)
    assert found[4]["answer"] == "8"
    found[4]["answer"] = r"\frac{"
    given = write_rows(tmp_path / "a.jsonl", found)
    assert prepare.main(["aime25", "--to", str(tmp_path / "p"), "--from", str(given)]) == 0
    assert list(manifest(tmp_path / "p", "aime25")["faulty_golds"]) == ["4"]
    assert "1 faulty gold answers: 4" in capsys.readouterr().out
    outside = Problem("7", "?", "E", options=("1", "2", "3", "4"))
    assert faulty_golds("multiple_choice", [outside], {"letters": "ABCDE"}) == {"7": "gold E of 4 options"}
    assert "is no option" in faulty_golds("multiple_choice", [outside], {"letters": "ABCD"})["7"]


def test_all_takes_what_a_folder_has_and_says_what_it_lacks(tmp_path, capsys):
    carried = tmp_path / "carried"
    carried.mkdir()
    for name in ("aime25", "svamp"):
        write_rows(carried / f"{name}.jsonl", rows(name, benchmarks.describe(name)["count"]))
    folder = tmp_path / "prepared"
    assert prepare.main(["all", "--from", str(carried), "--to", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "svamp: 1000 problems, sha256 " in printed
    assert "reclor: left out, no such file in" in printed
    assert sorted(path.name for path in folder.glob("*.manifest.json")) == [
        "aime25.manifest.json",
        "svamp.manifest.json",
    ]
    assert prepare.main(["all", "--check", "--to", str(folder)]) == 0
    assert prepare.main(["gsm8k", "--from", str(carried), "--to", str(folder)]) == 1
    assert "no gsm8k with one of the suffixes" in capsys.readouterr().err


def test_a_benchmark_without_a_public_source_says_how_to_get_it(tmp_path, capsys):
    assert prepare.main(["reclor", "--to", str(tmp_path)]) == 1
    assert "from its authors on request" in capsys.readouterr().err


def test_an_evaluation_reads_prepared_data(tmp_path, capsys):
    folder = tmp_path / "prepared"
    given = write_rows(tmp_path / "aime25.jsonl", rows("aime25", 30))
    prepare.main(["aime25", "--to", str(folder), "--from", str(given)])
    answers = [
        {"problem": str(n), "sample": 0, "response": rf"\boxed{{{2 * (n % 24)}}}", "tokens": 1, "finish_reason": "stop"}
        for n in range(30)
    ]
    saved = write_rows(tmp_path / "saved.jsonl", answers)
    arguments = ["benchmarks=[aime25]", f"data_dir={folder}", f"score_only={saved}", f"output_dir={tmp_path / 'out'}"]
    assert evaluate_main(arguments) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["models"]["saved"]["aime25"]["metrics"]["pass@1"]["mean"] == 1.0
    card = json.loads((tmp_path / "out" / "run_card.json").read_text())
    assert card["benchmarks"]["aime25"]["source"]["sha256"] == manifest(folder, "aime25")["sha256"]


def test_worked_examples_are_carried_too(tmp_path):
    carried = tmp_path / "carried"
    carried.mkdir()
    found = rows("mmlu_pro", 12032)
    write_rows(carried / "mmlu_pro.jsonl", found)
    shots = [row | {"cot_content": f"A: Let's think step by step. It is {n}."} for n, row in enumerate(found[:12])]
    write_rows(carried / "mmlu_pro_shots.jsonl", shots)
    assert prepare.main(["mmlu_pro", "--from", str(carried), "--to", str(tmp_path / "p")]) == 0
    loaded = benchmarks.load("mmlu_pro", data_dir=tmp_path / "p", with_shots=True)
    assert {group: len(examples) for group, examples in loaded.shots.items()} == {"law": 5, "math": 5}
    assert "It is 2." in loaded.shots["law"][1]


@pytest.fixture
def served_folder(tmp_path):
    """A folder behind a real HTTP server."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield tmp_path, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_rows_come_from_an_address_with_their_checksum(served_folder):
    folder, address = served_folder
    path = write_rows(folder / "test.txt", rows("logiqa_v2", 3))
    found, checksum = benchmarks.fetch({"url": f"{address}/test.txt"})
    assert found == rows("logiqa_v2", 3)
    assert checksum == benchmarks.file_checksum(path)
    with pytest.raises(DataError, match="404.*prepare NAME --from FILE"):
        benchmarks.fetch({"url": f"{address}/absent.jsonl"})


def test_several_splits_of_the_hub_are_joined_in_order(tmp_path):
    write_rows(tmp_path / "train.jsonl", rows("svamp", 7))
    write_rows(tmp_path / "test.jsonl", rows("svamp", 3))
    found, checksum = benchmarks.fetch({"dataset": str(tmp_path), "split": ["train", "test"], "revision": None})
    assert [row["ID"] for row in found] == [f"chal-{n}" for n in [*range(7), *range(3)]]
    assert checksum is None
    with pytest.raises(DataError, match="cannot be loaded"):
        benchmarks.fetch({"dataset": str(tmp_path / "absent"), "split": "test"})
