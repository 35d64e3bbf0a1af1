"""Answers are compared as the original's scope says, and a bad gold answer is nobody's excuse."""

import asyncio

import pytest

from recipes.pasodoble import grading
from reward_fns.result import Score, Skip


def grade(response, gold):
    return asyncio.run(grading.grade(response, gold))


@pytest.mark.parametrize(
    "response, gold, value",
    [
        (r"\boxed{2}", "2", 1),
        (r"\boxed{1/2}", r"\frac{1}{2}", 1),
        (r"<think>\boxed{2}", "2", 1),
        (r"<think>\boxed{3}</think>\boxed{2}", "2", 1),
        (r"<think>\boxed{2}</think>\boxed{3}", "2", 0),
        ("2", "2", 0),
        (r"\boxed{4/2} and then \boxed{3", "2", 1),
        (r"\boxed{2}", None, 0),
        (r"\boxed{2}", "", 0),
        (r"\boxed{}", "2", 0),
        (r"\boxed{the red house}", "the red house", 1),
        (r"\boxed{2}", r"\frac{", 0),
    ],
)
def test_grade(response, gold, value):
    result = grade(response, gold)
    assert isinstance(result, Score) and result.value == value


def test_a_fault_of_the_grader_is_no_verdict(monkeypatch):
    async def broken(*args, **kwargs):
        return Skip("pool_down")

    monkeypatch.setattr(grading, "ascore", broken)
    assert grade(r"\boxed{1/2}", "0.5") == Skip("pool_down")
    with pytest.raises(grading.GradingError, match="pool_down"):
        asyncio.run(grading.answers_agree("1/2", "0.5"))
    row = asyncio.run(grading.compute_score("pasodoble", r"\boxed{1/2}", "0.5", reward_router_address=None))
    assert (row["status"], row["score"], row["skipped"]) == ("skip", 0.0, 1.0)


@pytest.mark.parametrize(
    "answer, gold, agrees", [("0.5", r"\frac12", True), ("1", "2", False), (None, "2", False), ("2", None, False)]
)
def test_answers_agree(answer, gold, agrees):
    assert asyncio.run(grading.answers_agree(answer, gold)) is agrees
