"""Grades, classes and summaries: golden tables for each way of reading an answer."""

import pytest

from recipes.evaluation.grade import MetricOptions, answer_classes, grade, per_problem, right_classes, summarise
from recipes.evaluation.sample_store import SampledResponse


def samples(*texts, problem="p"):
    return {problem: [SampledResponse(problem, i, text, len(text), "stop") for i, text in enumerate(texts)]}


def right(kind, text, gold, **options):
    (found,) = grade(kind, samples(text), {"p": gold}, options, classes=False)["p"]
    return found.right, found.reason


@pytest.mark.parametrize(
    ("response", "gold", "expected"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", True),
        (r"so \boxed{7}", "#### 7", True),
        (r"first \boxed{7}, no, \boxed{8}", "7", False),
        (r"<think>\boxed{7}</think> done", "7", False),
        ("the answer is 7", "7", False),
        (r"\boxed{x=41=42}", "42", False),
        (r"\boxed{7", "7", False),
        (r"see \boxed{3}", r"Solving, $x = \boxed{3}$.", True),
    ],
)
def test_the_strict_reading_of_mathematics(response, gold, expected):
    assert right("math", response, gold)[0] is expected


@pytest.mark.parametrize(
    ("response", "gold", "expected"),
    [("the answer is 7", "7", True), (r"<think>so \boxed{7}</think> it is \boxed{7}", "7", True), ("none", "7", False)],
)
def test_the_lenient_reading_of_mathematics(response, gold, expected):
    assert right("math", response, gold, mode="lenient")[0] is expected


@pytest.mark.parametrize(
    ("style", "response", "gold", "expected"),
    [
        ("strict", "The answer is (B).", "B", True),
        ("strict", "The answer is A or B.", "B", False),
        ("finish", "Action 3: Finish[The answer is B.]", 1, True),
        ("finish", "Finish[A or B]", 1, False),
        ("finish", "The answer is B", 1, False),
        ("mmlu_pro", "so the answer is (D) because", "D", True),
        ("mmlu_pro", "Answer: C", "C", True),
        ("mmlu_pro", "it must be E", "E", True),
    ],
)
def test_the_readings_of_multiple_choice(style, response, gold, expected):
    letters = "ABCD" if style == "finish" else "ABCDEFGHIJ"
    assert right("multiple_choice", response, gold, style=style, letters=letters)[0] is expected


def test_mmlu_pros_guess_is_made_only_where_no_letter_is_read():
    texts = samples("none at all", "the answer is (A)")
    options = {"style": "mmlu_pro", "guess": True}
    hits = [
        [found.right for found in grade("multiple_choice", texts, {"p": gold}, options, choices={"p": 4})["p"]]
        for gold in "ABCD"
    ]
    assert sum(guessed for guessed, _ in hits) == 1
    assert [read for _, read in hits] == [True, False, False, False]


def test_an_unusable_gold_answer_is_a_skip_not_a_zero():
    (found,) = grade("multiple_choice", samples("The answer is (B)."), {"p": "?"})["p"]
    assert (found.status, found.right) == ("skip", False)


def test_equal_answers_share_a_class_whatever_their_form():
    texts = [r"\boxed{0.5}", r"\boxed{3}", r"\boxed{\frac12}", "I do not know at all", r"\boxed{1/2}"]
    classes = answer_classes(texts)
    assert classes[0] == classes[2] == classes[4] != classes[1]
    assert classes[3] is None


def test_the_first_response_of_a_class_decides_whether_it_is_right():
    graded = grade("math", samples(r"\boxed{2}", r"\boxed{3}", r"\boxed{2.0}"), {"p": "2"})["p"]
    assert right_classes(graded) == {graded[0].answer_class}


def table():
    found = samples(r"\boxed{1}", r"\boxed{1}", r"\boxed{2}", "nothing", problem="a")
    found |= samples(r"\boxed{5}", r"\boxed{5}", r"\boxed{5}", r"\boxed{4}", problem="b")
    return found, grade("math", found, {"a": "1", "b": "4"})


def test_every_metric_against_hand_computation():
    found, graded = table()
    scores, dropped = per_problem(graded, MetricOptions(k=(1, 2, 4)))
    assert not dropped
    assert scores["avg@4"] == scores["pass@1"] == {"a": 0.5, "b": 0.25}
    assert scores["pass@2"] == pytest.approx({"a": 1 - 1 / 6, "b": 0.5})
    assert scores["maj@4"] == {"a": 1.0, "b": 0.0}
    # Two of four: the pair 1,1 wins; 1,2 ties; 1 with the silent one wins; 2 with the silent one loses.
    assert scores["maj@2"] == pytest.approx({"a": (1 + 2 * 0.5 + 2) / 6, "b": 3 * 0.5 / 6})
    # The published rule is one draw: the first four vote, and the winner is right or not.
    first, _ = per_problem(graded, MetricOptions(k=(1, 2, 4), majority="first"))
    assert first["maj@2"] == first["maj@4"] == {"a": 1.0, "b": 0.0}


def test_the_published_denominator_changes_the_number_and_says_so():
    found, graded = table()
    sane = summarise(graded, found, MetricOptions())
    published = summarise(graded, found, MetricOptions(denominator="parsable"))
    assert sane["metrics"]["avg@4"]["mean"] == pytest.approx(0.375)
    assert published["metrics"]["avg@4"]["mean"] == pytest.approx((2 / 3 + 1 / 4) / 2)
    assert sane["denominator"] == {"rule": "all", "counted": 8, "excluded": {}}
    assert published["denominator"] == {"rule": "parsable", "counted": 7, "excluded": {"no_box": 1}}


def test_problems_with_too_few_readable_responses_leave_all_k_together():
    _, graded = table()
    scores, dropped = per_problem(graded, MetricOptions(k=(1, 4), denominator="parsable"))
    assert dropped == {"a": "no_box"}
    assert all(list(found) == ["b"] for found in scores.values())


def test_more_k_than_responses_are_refused():
    found, graded = table()
    with pytest.raises(ValueError, match="found 4; raise sampling.n"):
        summarise(graded, found, MetricOptions(k=(8,)))
