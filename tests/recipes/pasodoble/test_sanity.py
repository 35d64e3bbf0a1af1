"""Each rule of the sanity check, alone."""

import pytest

from recipes.pasodoble.parsing import find_fault


@pytest.mark.parametrize(
    "question, answer, fault",
    [
        ("How many?", None, "missing"),
        (None, "7", "missing"),
        ("", "7", "missing"),
        ("How many?", "", "missing"),
        ("x+1", "x+1 = 3", "question_in_answer"),
        (r"Show that \boxed{9} holds.", "7", "box_in_question"),
        ("Is it 42 or not?", "42", "answer_in_question"),
        ("What is the sum of three and four?", "7", None),
        (r"Show that \boxed{9 holds.", "7", None),
    ],
)
def test_each_rule_alone(question, answer, fault):
    assert find_fault(question, answer) == fault


@pytest.mark.parametrize(
    "question", ["Solve x^2 = a.", "Let a_2 = b.", "Solve x^{2} = a.", "A dozen is 12.", "1.2 or 2.5"]
)
def test_token_check_spares_an_answer_that_is_part_of_something_else(question):
    assert find_fault(question, "2") == "answer_in_question"
    assert find_fault(question, "2", leak_check="token") is None


@pytest.mark.parametrize("question", ["It is 2.", "Is $2$ right?", "2", "f(2) = b", "x=2"])
def test_token_check_still_finds_the_answer_itself(question):
    assert find_fault(question, "2", leak_check="token") is not None


@pytest.mark.parametrize(
    "question, answer, found",
    [
        ("Of 1,234 pupils", "234", False),
        ("Of 1,234,567 pupils", "234", False),
        ("Of 1,234 pupils", "1", False),
        ("Of 1,234 pupils", "1,234", True),
        ("The roots 3,12 and 5", "12", True),
        ("The roots 3, 234 and 5", "234", True),
    ],
)
def test_token_check_reads_groups_of_thousands_as_one_number(question, answer, found):
    assert (find_fault(question, answer, leak_check="token") is not None) == found
