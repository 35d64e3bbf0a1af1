"""BIG-Bench Extra Hard: what counts as the answer, what equals the gold answer, and the mean over tasks."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.evaluation import bbeh
from recipes.evaluation.grading import grade
from recipes.evaluation.sample_store import SampledResponse


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        ("The answer is: 42", "42"),
        ("The answer is: 42.", "42"),
        ("The answer is: 42.0", "42"),
        ("Thus. The final answer is (B).", "(B)"),
        ("The answer is: b", "(B)"),
        ("The answer is: (b)", "B"),
        ("The answer is: **Yes**", "yes"),
        ("The answer is: yes\nbecause no", "Yes"),
        (r"The answer is: $\boxed{\text{yes}}$.", "yes"),
        ("The answer is: a, b,c", "a,b, c"),
        ("The answer is: [1, 2]", "1, 2"),
        ("The answer is: 1, 2", "[1,2]"),
        ("The answer is: it's", "its"),
        ("The answer is: why?", "why"),
        ("The answer is: no. The final answer is: yes", "yes"),
        ("<think>The answer is: no</think>The answer is: yes", "yes"),
        ("yes", "yes"),
    ],
)
def test_these_are_right(response, gold):
    assert bbeh.score(response, gold).acc == 1.0


@pytest.mark.parametrize(
    ("response", "gold", "reason"),
    [
        ("The answer is: 43", "42", "wrong"),
        ("The answer is: (A)", "(B)", "wrong"),
        ("The answer is: yes. The answer is: no", "yes", "wrong"),
        ("The answer is: (A) or (B)", "(B)", "wrong"),
        ("The answer is: nan", "inf", "wrong"),
        ("I think yes", "yes", "no_phrase"),
        ("<think>The answer is: yes</think>", "yes", "no_phrase"),
        ("", "yes", "no_phrase"),
        ("The answer is: ", "yes", "wrong"),
    ],
)
def test_these_are_wrong(response, gold, reason):
    found = bbeh.score(response, gold)
    assert (found.acc, found.reason) == (0.0, reason)


def test_a_problem_without_a_gold_answer_is_skipped():
    assert bbeh.score("The answer is: ", "").reason == "empty_gold"
    assert bbeh.score("The answer is: None", None).reason == "empty_gold"


def test_zero_is_a_gold_answer():
    assert bbeh.score("The answer is: 0", 0).acc == 1.0


def test_a_response_that_opens_wrappers_for_ever_takes_no_square_of_its_length():
    started = time.process_time()
    assert bbeh.score("The answer is: " + r"\text{" * 20_000, "yes").acc == 0.0
    assert time.process_time() - started < 5


@given(st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="${}\\*"), min_size=1, max_size=12))
def test_a_one_line_answer_without_markup_equals_itself(gold):
    assert bbeh.score(f"We think.\nThe answer is: {gold}", gold).acc == 1.0


def test_responses_with_the_same_answer_vote_together():
    texts = ["The answer is: YES", "The answer is: **yes**.", "The answer is: no", "yes or no"]
    samples = {"p": [SampledResponse("p", number, text, 1, "stop") for number, text in enumerate(texts)]}
    found = grade("bbeh", samples, {"p": "yes"})["p"]
    assert [one.answer_class for one in found] == ["yes", "yes", "no", None]
    assert [one.right for one in found] == [True, True, False, False]


def test_the_mean_over_tasks_is_harmonic_and_bears_a_task_without_a_right_answer():
    assert bbeh.mean_over_tasks([0.5, 0.5]) == pytest.approx(51)
    assert bbeh.mean_over_tasks([0.0, 0.99]) == pytest.approx(2 / (1 / 1 + 1 / 100))


def test_the_command_prints_both_means(tmp_path, capsys):
    groups = {"nycc": {"problems": 2, "pass@1": 0.0}, "zebra puzzles": {"problems": 2, "pass@1": 0.99}}
    result = {"metrics": {"pass@1": {"mean": 0.495}}, "groups": groups}
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"models": {"mine": {"bbeh": result}}}))
    assert bbeh.main([str(path)]) == 0
    assert "| mine | 49.5 | 2.0 | 2 |" in capsys.readouterr().out
    path.write_text(json.dumps({"models": {"mine": {}}}))
    assert bbeh.main([str(path)]) == 2
    assert "no result on bbeh" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "null", '{"models": []}', '{"models": {"m": {"bbeh": {}}}}'])
def test_a_file_that_is_no_summary_is_named(tmp_path, capsys, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    assert bbeh.main([str(path)]) == 2
    assert f"{path} is no summary.json" in capsys.readouterr().err
