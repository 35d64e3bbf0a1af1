"""Grades made beside the engine are the grades of the whole batch."""

import threading

import pytest

from recipes.evaluation.grade import RunningGrader, grade
from recipes.evaluation.sample_store import SampledResponse

GOLDS = {"a": "2", "b": "x^2", "c": "7"}
RESPONSES = {"a": ["\\boxed{2}", "\\boxed{3}"], "b": ["\\boxed{x^2}", "none"], "c": ["\\boxed{7.0}", "\\boxed{7}"]}
SAMPLES = {
    problem: [SampledResponse(problem, i, text, 3, "stop", 5) for i, text in enumerate(found)]
    for problem, found in RESPONSES.items()
}


def grade_all(samples):
    return grade("math", samples, GOLDS)


@pytest.mark.parametrize("queued", [[], ["b"], ["c", "a"], ["b", "a", "c"]])
def test_queued_or_not_grades_and_their_order_are_the_same(queued):
    grader = RunningGrader(grade_all)
    try:
        for problem in queued:
            grader.add(problem, SAMPLES[problem])
        found = grader.grades(SAMPLES)
    finally:
        grader.close()
    assert found == grade_all(SAMPLES) and list(found) == list(SAMPLES)
    assert [grade.right for grade in found["a"]] == [True, False]


def test_it_grades_while_the_caller_goes_on():
    seen, go_on = threading.Event(), threading.Event()

    def slow(samples):
        seen.set()
        assert go_on.wait(30)
        return grade_all(samples)

    grader = RunningGrader(slow)
    grader.add("a", SAMPLES["a"])
    assert seen.wait(30), "nothing was graded before the grades were asked for"
    go_on.set()
    assert grader.grades({"a": SAMPLES["a"]}) == grade_all({"a": SAMPLES["a"]})
    grader.close()


def test_a_fault_of_the_grader_reaches_the_caller():
    def broken(samples):
        raise RuntimeError("no grades today")

    grader = RunningGrader(broken)
    grader.add("a", SAMPLES["a"])
    with pytest.raises(RuntimeError, match="no grades today"):
        grader.grades({"a": SAMPLES["a"]})
    grader.close()
