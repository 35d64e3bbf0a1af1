"""Prompts, option orders, and data sets as verl rows."""

import json

import pyarrow.parquet
import pytest

from recipes.errors import DataError
from recipes.step_ppo.pipeline import prepare
from recipes.step_ppo.pipeline.data import DATASETS, last_boxed, load_questions
from recipes.step_ppo.prompts import REACT_EXAMPLE, ordered_options, react_prompt, with_example
from recipes.step_ppo.steps import clean_response, segment

LOGIQA = {"id": 4, "text": "All A are B.", "question": "Which?", "options": ["w", "x", "y", "z"], "answer": 2}
RECLOR = {"context": "Text.", "question": "Q?", "answers": ["a", "b", "c", "d"], "label": 0, "id_string": "t0"}


def test_prompt_has_one_tail_without_space():
    prompt = react_prompt("Ctx", "Q?", ["a", "b"])
    assert prompt.endswith("Context:\nCtx\n\nQuestion:\nQ?\n\nOptions:\nA. a\nB. b\n\nThought 1:")


def test_example_is_a_clean_trajectory_and_comes_before_the_question():
    start = REACT_EXAMPLE.index("Thought 1:")
    response = REACT_EXAMPLE[start + len("Thought 1:") :]
    assert clean_response(response, rules="1.1") == clean_response(response) == response.strip()
    assert len(segment(REACT_EXAMPLE)) == 8
    zero = react_prompt("Ctx", "Q?", ["a", "b"])
    instruction, question = zero.split("\n\n", 1)
    assert with_example(zero, REACT_EXAMPLE) == f"{instruction}\n\n{REACT_EXAMPLE}\n\n{question}"
    with pytest.raises(ValueError, match="instruction"):
        with_example("other prompt", REACT_EXAMPLE)


@pytest.mark.parametrize(
    ("order", "options", "label"), [(None, "wxyz", 2), ("BCAD", "xywz", 1), ("DCBA", "zyxw", 1), ("CABD", "ywxz", 0)]
)
def test_option_order_moves_the_label_with_its_option(order, options, label):
    found, new_label = ordered_options(list("wxyz"), 2, order)
    assert "".join(found) == options and new_label == label and found[label] == "y"


@pytest.mark.parametrize("order", ["ABC", "ABCC", "ABCE", "abcd"])
def test_order_that_is_no_permutation(order):
    with pytest.raises(ValueError, match="permutation"):
        ordered_options(list("wxyz"), 0, order)


@pytest.mark.parametrize(
    ("name", "item", "gold", "style"),
    [
        ("logiqa2", LOGIQA, "C", "react"),
        ("reclor", RECLOR, "A", "react"),
        ("reclor", {**RECLOR, "label": ""}, "", "react"),
        ("reclor", {k: v for k, v in RECLOR.items() if k != "label"}, "", "react"),
        ("gsm8k", {"question": "How many?", "answer": "one\n#### 1,234"}, "1234", "lines"),
        (
            "math",
            {"problem": "Find x.", "solution": "so \\boxed{1} and \\boxed{\\frac{1}{2}}."},
            "\\frac{1}{2}",
            "lines",
        ),
    ],
)
def test_rows(name, item, gold, style):
    row = DATASETS[name].row(item, 7, "train", None)
    assert row["reward_model"]["ground_truth"] == gold
    assert row["extra_info"] == {"index": 7, "split": "train", "step_style": style}
    assert row["prompt"][0]["role"] == "user" and not row["prompt"][0]["content"].endswith(" ")


@pytest.mark.parametrize(
    ("name", "item", "message"),
    [
        ("logiqa2", {**LOGIQA, "answer": 4}, "item 7 of train: label 4"),
        ("logiqa2", {k: v for k, v in LOGIQA.items() if k != "text"}, "no 'text'"),
        ("logiqa2", {**LOGIQA, "options": list("abcde")}, "1 to 4 options"),
        ("logiqa2", {**LOGIQA, "options": "abcd"}, "must be a list"),
        ("logiqa2", {**LOGIQA, "answer": "B"}, "item 7 of train: label 'B' is no position"),
        ("logiqa2", {**LOGIQA, "answer": 1.5}, "is no position"),
        ("logiqa2", {**LOGIQA, "answer": float("inf")}, "label inf is no position"),
        ("gsm8k", {"question": "q", "answer": "no marks"}, "####"),
        ("gsm8k", {"question": "q", "answer": "####"}, "a result"),
        ("gsm8k", {"question": None, "answer": "#### 3"}, "a text 'question'"),
        ("math", {"problem": None, "solution": "\\boxed{1}"}, "a text 'problem'"),
        ("math", {"problem": "p", "solution": "\\boxed{open"}, "boxed"),
    ],
)
def test_malformed_items_are_named(name, item, message):
    with pytest.raises(DataError, match=message):
        DATASETS[name].row(item, 7, "train", None)


def test_last_boxed():
    assert last_boxed("\\boxed{a{b}c} tail") == "a{b}c"
    assert last_boxed("\\boxed{1} then \\boxed{2") == "1"
    assert last_boxed("none") is None
    # As in the reader of MATH's authors: both commands, and a box without braces up to the end of its formula.
    assert last_boxed("so $\\fbox{3}$.") == "3" and last_boxed("\\boxed{1}, so $x = \\boxed 92$.") == "92"
    assert (
        last_boxed("\\boxed{\\left\\{1, 2\\right.}") == "\\left\\{1, 2\\right."
        and last_boxed("\\boxed{\\{1\\}}") == "\\{1\\}"
    )


def test_command_from_json_lines(tmp_path):
    source = tmp_path / "train.txt"
    source.write_text("".join(json.dumps({**LOGIQA, "text": f"T{i}"}) + "\n" for i in range(5)))
    out = tmp_path / "p.parquet"
    prepare.main(["--dataset", "logiqa2", "--files", str(source), "--output", str(out), "--option-order", "DCBA"])
    rows = pyarrow.parquet.read_table(out).to_pylist()
    assert [r["extra_info"]["index"] for r in rows] == list(range(5)) and rows[0]["reward_model"]["ground_truth"] == "B"
    questions = load_questions([out])
    assert list(questions) == list("01234") and questions["3"].prompt == rows[3]["prompt"][0]["content"]
    with pytest.raises(DataError, match="twice"):
        load_questions([out, out])


def test_command_from_reclor_json_and_refusals(tmp_path):
    source = tmp_path / "val.json"
    source.write_text(json.dumps([RECLOR, RECLOR]))
    out = tmp_path / "p.parquet"
    prepare.main(["--dataset", "reclor", "--files", str(source), "--output", str(out), "--max-questions", "1"])
    assert len(load_questions([out])) == 1
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"context": \n')
    with pytest.raises(DataError, match=r"bad\.jsonl line 1"):
        prepare.main(["--dataset", "reclor", "--files", str(bad), "--output", str(tmp_path / "q.parquet")])
    assert not (tmp_path / "q.parquet").exists()
    with pytest.raises(SystemExit, match="option-order"):
        prepare.main(["--dataset", "gsm8k", "--files", str(source), "--output", str(out), "--option-order", "AB"])
