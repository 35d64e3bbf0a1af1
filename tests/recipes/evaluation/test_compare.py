"""Runs of real evaluations compared: differences, adjusted p-values, macros, gates and refusals."""

import json

import numpy as np
import pytest

from recipes.errors import DataError
from recipes.evaluation import compare
from recipes.evaluation.main import main as evaluate

PROBLEMS = 40


@pytest.fixture
def outputs(tmp_path):
    """Makes the output folder of a real evaluation in which the given problems are right."""

    def make(name, right, *overrides, benchmark="sums", question="What is"):
        data = tmp_path / f"{benchmark}.jsonl"
        data.write_text(
            "\n".join(json.dumps({"problem": f"{question} {n}+{n}?", "answer": str(2 * n)}) for n in range(PROBLEMS))
        )
        saved = tmp_path / f"{name}.jsonl"
        rows = [
            {
                "problem": str(n),
                "sample": i,
                "response": rf"\boxed{{{2 * n + (n not in right)}}}",
                "tokens": 3,
                "finish_reason": "length" if n == 0 else "stop",
            }
            for n in range(PROBLEMS)
            for i in range(2)
        ]
        saved.write_text("\n".join(map(json.dumps, rows)))
        folder = tmp_path / f"out_{name}"
        arguments = [f"benchmarks=[{data}]", f"score_only={saved}", f"output_dir={folder}", *overrides]
        assert evaluate(arguments) == 0
        return folder

    return make


def test_differences_are_paired_and_adjusted_together(outputs, tmp_path, capsys):
    base, same, worse = (
        outputs("base", set(range(20))),
        outputs("same", set(range(20))),
        outputs("worse", set(range(8))),
    )
    rows, notes = compare.table(compare.read_runs([base, same, worse]))
    assert [(row.run, row.benchmark, row.problems) for row in rows] == [("same", "sums", 40), ("worse", "sums", 40)]
    reach = 1.959964**2 / (40 + 1.959964**2)
    assert rows[0].difference == pytest.approx((0.0, -reach, reach)), "forty equal answers are no proof of equality"
    assert rows[0].p_value == 1.0
    assert rows[1].difference.mean == pytest.approx(-12 / 40)
    assert rows[1].p_value == pytest.approx(2 * 0.5**12)
    assert rows[1].adjusted == pytest.approx(2 * rows[1].p_value)
    assert "2 comparisons" in notes[0] and "Holm" in notes[0]
    capsys.readouterr()
    assert compare.main([str(base), str(same), str(worse), "--markdown", str(tmp_path / "t.md")]) == 0
    table = (tmp_path / "t.md").read_text()
    assert "| worse | sums | 50.00 (2.5 %) | 20.00 (2.5 %) | -30.00 [" in table
    assert table.strip() == capsys.readouterr().out.strip()


def test_the_gate_opens_only_when_the_whole_interval_is_below(outputs, capsys):
    base, worse = outputs("base", set(range(20))), outputs("worse", set(range(8)))
    assert compare.main([str(base), str(worse), "--fail-below", "0"]) == 1
    assert "worse on sums is -30.00 points, at most" in capsys.readouterr().err
    assert compare.main([str(base), str(worse), "--fail-below", "-29"]) == 0, "the interval reaches above"
    assert compare.main([str(worse), str(base), "--fail-below", "0"]) == 0
    with pytest.raises(SystemExit):
        compare.main([str(base), str(worse), "--fail-below", "nan"])


def test_a_table_that_cannot_be_written_is_said(outputs, tmp_path, capsys):
    base = outputs("base", {1})
    assert compare.main([str(base), str(base), "--markdown", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("compare: ")


def test_macros_compare_with_equal_weight_of_their_parts(outputs, tmp_path):
    macro = "macro={all: [sums, more]}"
    folders = []
    for name, first, second in (("base", 20, 10), ("new", 20, 20)):
        one = outputs(f"{name}_1", set(range(first)), macro)
        two = outputs(f"{name}_2", set(range(second)), macro, benchmark="more", question="How much is")
        # One evaluation of two benchmarks, as score_only makes them one by one.
        merged = tmp_path / name
        (merged / name).mkdir(parents=True)
        cards = []
        for folder in (one, two):
            (path,) = folder.glob("*/*.samples.jsonl")
            (merged / name / path.name).write_text(path.read_text())
            cards.append(json.loads((folder / "run_card.json").read_text()))
        cards[0]["benchmarks"] |= cards[1]["benchmarks"]
        (merged / "run_card.json").write_text(json.dumps(cards[0]))
        folders.append(merged)
    rows, _ = compare.table(compare.read_runs(folders))
    found = {row.benchmark: row for row in rows}
    assert found["macro all"].difference.mean == pytest.approx((0 + 10 / 40) / 2)
    assert found["macro all"].p_value == pytest.approx(found["more"].p_value)
    assert (found["macro all"].baseline, found["macro all"].score) == pytest.approx(((0.5 + 0.25) / 2, 0.5))
    assert np.isclose(found["more"].difference.mean, 0.25)


def test_other_settings_are_said_and_other_data_refused(outputs, capsys):
    base = outputs("base", {1})
    warm = outputs("warm", {1, 2}, "sampling.temperature=0.7", "sampling.n=2", "prompt.system=Be brief")
    _, notes = compare.table(compare.read_runs([base, warm]))
    expected = "prompt.system Be brief instead of None, sampling.n 2 instead of 1, sampling.temperature 0.7 instead of"
    assert any(expected in note for note in notes)
    card = json.loads((warm / "run_card.json").read_text())
    card["config"] = json.loads((base / "run_card.json").read_text())["config"]
    card["models"]["warm"]["sampling"] = {"sums": card["config"]["sampling"] | {"max_tokens": 32768}}
    (warm / "run_card.json").write_text(json.dumps(card))
    _, notes = compare.table(compare.read_runs([base, warm]))
    assert any("sampling.max_tokens 32768 instead of None" in note for note in notes), "what a model's preset gave"
    other = outputs("other", {1}, question="Name")
    with pytest.raises(DataError, match="were asked other problems"):
        compare.table(compare.read_runs([base, other]))
    elsewhere = outputs("elsewhere", {1}, benchmark="apart")
    assert compare.main([str(base), str(elsewhere)]) == 2
    assert "share no benchmark" in capsys.readouterr().err
    assert compare.main([str(base)]) == 2
    assert compare.main([str(base), str(warm), "--metric", "pass@8"]) == 2
    assert "it has" in capsys.readouterr().err


def test_runs_of_the_same_name_are_told_apart(outputs, tmp_path):
    first = outputs("m", {1})
    second = tmp_path / "again"
    first.rename(second)
    first = outputs("m", {1, 2})
    assert [run.name for run in compare.read_runs([first, second])] == ["out_m/m", "again/m"]


def test_the_rules_of_the_baseline_hold_for_all(outputs):
    base = outputs("base", set(range(20)), "k=[2]")
    other = outputs("other", set(range(20)), "k=[1]", "metrics.denominator=parsable")
    rows, _ = compare.table(compare.read_runs([base, other]))
    assert (rows[0].baseline, rows[0].score) == (0.5, 0.5)
    assert "pass@2" in compare.table(compare.read_runs([base, other]))[1][0]


def test_problems_known_since_long_are_named(outputs):
    base, new = outputs("base", {1}), outputs("new", {1})
    for folder in (base, new):
        card = json.loads((folder / "run_card.json").read_text())
        card["benchmarks"]["sums"]["source"]["published"] = "2021-03"
        (folder / "run_card.json").write_text(json.dumps(card))
    _, notes = compare.table(compare.read_runs([base, new]))
    assert notes[-1].endswith("(sums 2021-03).")
