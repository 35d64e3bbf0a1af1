"""Sample files of lm-evaluation-harness and lighteval, graded and counted by this evaluation."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.errors import DataError
from recipes.evaluation.foreign_samples import read_foreign
from recipes.evaluation.main import main
from recipes.evaluation.problem import Problem

QUESTIONS = [f"What is {n}+{n}?" for n in range(6)]
PROBLEMS = [Problem(str(n), question, str(2 * n)) for n, question in enumerate(QUESTIONS)]
SHOT = "Question: What is 5+5?\nAnswer: 10\n\n"


def lm_eval_rows(filters=("strict-match", "flexible-extract")):
    """As `lm_eval --log_samples` writes them: a row for each document and filter, two repeats."""
    return [
        {
            "doc_id": n,
            "doc": {"question": question, "answer": f"#### {2 * n}"},
            "target": str(2 * n),
            "arguments": {"gen_args_0": {"arg_0": f"{SHOT}Question: {question}\nAnswer:", "arg_1": {"until": ["\n"]}}},
            "resps": [[rf"It is \boxed{{{2 * n}}}.", rf"It is \boxed{{{2 * n + n % 2}}}."]],
            "filtered_resps": [str(2 * n)],
            "filter": name,
            "metrics": ["exact_match"],
            "exact_match": 1.0,
            "doc_hash": "x",
            "prompt_hash": "x",
            "target_hash": "x",
        }
        for n, question in enumerate(QUESTIONS)
        for name in filters
    ]


def lighteval_rows():
    """As lighteval's details of version 0.10 have them."""
    return [
        {
            "doc": {"query": f"Solve it.\n{SHOT}{question}", "choices": [str(2 * n)], "gold_index": 0, "id": str(n)},
            "metric": {"extractive_match": 1.0},
            "model_response": {
                "input": question,
                "text": [rf"\boxed{{{2 * n}}}", rf"\boxed{{{2 * n + n % 2}}}"],
                "output_tokens": [[1] * 4, [1] * 7],
                "truncated_tokens_count": 0,
            },
        }
        for n, question in enumerate(QUESTIONS)
    ]


def old_lighteval_rows():
    """As lighteval's details of earlier versions have them."""
    return [
        {
            "example": question,
            "full_prompt": f"{SHOT}{question}",
            "predictions": [[rf"\boxed{{{2 * n}}}", rf"\boxed{{{2 * n + n % 2}}}"]],
            "cont_tokens": [[1] * 4, [1] * 7],
            "gold": [str(2 * n)],
            "metrics": {"extractive_match": 1.0},
        }
        for n, question in enumerate(QUESTIONS)
    ]


@pytest.mark.parametrize("made", [lm_eval_rows, lighteval_rows, old_lighteval_rows])
def test_a_file_of_another_harness_is_graded_in_any_order(made, tmp_path, capsys):
    rows = made()
    random.Random(1).shuffle(rows)
    data = tmp_path / "sums.jsonl"
    data.write_text("\n".join(json.dumps({"problem": q, "answer": str(2 * n)}) for n, q in enumerate(QUESTIONS)))
    if made is lm_eval_rows:
        path = tmp_path / "samples_sums_2026-01-01.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        path = tmp_path / "details_sums_2026-01-01.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
    arguments = [f"benchmarks=[{data}]", f"score_only={path}", "k=[1,2]", f"output_dir={tmp_path / 'out'}"]
    assert main(arguments) == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "out" / "summary.json").read_text())["models"][path.stem]["sums"]
    assert found["responses_per_problem"] == 2
    assert found["metrics"]["pass@1"]["mean"] == pytest.approx((3 * 1 + 3 * 0.5) / 6)
    assert found["metrics"]["pass@2"]["mean"] == 1.0
    if made is not lm_eval_rows:
        assert found["mean_tokens"] == 5.5


def test_the_question_behind_the_worked_examples_is_the_one_asked():
    row = {"doc_id": 0, "doc": {}, "arguments": [[f"{SHOT}Question: {QUESTIONS[2]}"]], "resps": [["4"]]}
    assert list(read_foreign([row], PROBLEMS, "f")) == ["2"]


def test_what_cannot_be_matched_or_graded_is_refused():
    unknown = lm_eval_rows()[:1]
    unknown[0] |= {"doc": {"question": "Who?"}, "arguments": [["Who?"]]}
    with pytest.raises(DataError, match="f: 1 of 1 questions are no problem of the benchmark, such as 'Who"):
        read_foreign(unknown, PROBLEMS, "f")
    choices = lm_eval_rows()[:1]
    choices[0]["resps"] = [[[-1.5, False]], [[-0.2, True]]]
    with pytest.raises(DataError, match="log-likelihood cannot be graded again"):
        read_foreign(choices, PROBLEMS, "f")
    with pytest.raises(DataError, match="two rows hold responses to problem 0"):
        read_foreign(lighteval_rows()[:1] * 2, PROBLEMS, "f")
    with pytest.raises(DataError, match="have the same question"):
        read_foreign(lighteval_rows(), [*PROBLEMS, Problem("9", QUESTIONS[0], "0")], "f")
