"""The published case table: every row scores as it says, and no adversarial row is accepted."""

from collections import Counter

import pytest
import score_cases
from score_cases import CASES, load_cases

from reward_fns.math import score_batch
from reward_fns.multiple_choice import score as score_choice
from reward_fns.result import Score

FAMILIES = ("right", "wrong", "adversarial", "control", "gold", "classes")


def value_of(result):
    return result.value if isinstance(result, Score) else "skip"


def strict(cases):
    return score_batch([case["response"] for case in cases], [case["gold"] for case in cases], time_limit=6.0)


@pytest.fixture(scope="module")
def judged():
    cases = load_cases(*FAMILIES)
    return list(zip(cases, strict(cases), strict=True))


def test_every_row_scores_as_published(judged):
    found = [
        (case["id"], case["why"], value_of(result), result.reason)
        for case, result in judged
        if (value_of(result), result.reason) != (case["expected"], case["reason"])
    ]
    assert found == []


def test_no_adversarial_row_is_accepted(judged):
    adversarial = [(case, result) for case, result in judged if case["family"] == "adversarial"]
    assert len(adversarial) >= 100
    assert [case["id"] for case, result in adversarial if value_of(result) != 0.0] == []


@pytest.mark.parametrize(("family", "count"), [("ordinary", 1000), ("hostile", 1500), ("mutated", 1600)])
def test_the_large_tables(family, count):
    """Every row alike but for reasons: recall is the share of right rows accepted, and no wrong row is."""
    cases = load_cases(family)
    assert len(cases) >= count
    accepted = {case["id"] for case, result in zip(cases, strict(cases), strict=True) if value_of(result) == 1.0}
    right = {case["id"] for case in cases if case["expected"] == 1.0}
    assert accepted - right == set()
    assert len(accepted) >= 0.97 * len(right)


def test_multiple_choice_rows():
    for case in load_cases("multiple_choice"):
        result = score_choice(case["response"], case["gold"], style=case["style"])
        assert (value_of(result), result.reason) == (case["expected"], case["reason"]), (case["id"], case["why"])


def test_the_table_is_well_formed():
    cases = load_cases()
    assert len(cases) >= 300
    assert len({case["id"] for case in cases}) == len(cases)
    assert all(case["why"] for case in cases)
    assert all(case["expected"] in (0.0, 1.0, "skip") for case in cases)
    assert all(case["reason"] or case["expected"] == 1.0 for case in cases)
    assert min(Counter(case["family"] for case in cases).values()) >= 20
    keys = [(repr(case["gold"]), case["response"], case.get("style")) for case in cases]
    assert len(set(keys)) == len(keys), [key for key, count in Counter(keys).items() if count > 1]


def test_a_gold_answer_of_the_right_rows_is_right_itself():
    """Negative control of the grader: it must not accept by looking at the response alone, nor reject gold."""
    rows = load_cases("right")
    own = strict([case | {"response": rf"\boxed{{{case['gold']}}}"} for case in rows])
    assert [case["id"] for case, result in zip(rows, own, strict=True) if value_of(result) != 1.0] == []
    foreign = strict([case | {"gold": "7919"} for case in rows])
    assert [case["id"] for case, result in zip(rows, foreign, strict=True) if value_of(result) != 0.0] == []


def test_the_tables_run_against_any_grader(capsys):
    wrong = [str(CASES / "wrong.jsonl"), "--require-clean", "--differences"]
    assert score_cases.main(wrong) == 0
    assert score_cases.main([*wrong, "--grader", "case_graders:accepts_all"]) == 1
    assert "wrong-001 expected 0.0, got 1.0" in capsys.readouterr().out
