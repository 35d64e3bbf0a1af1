"""Cleaning rules of the ReAct format."""

import pytest

from recipes.step_ppo.steps import clean_response, step_kind

FINISH = "Action 2: Finish[The answer is B.]"


def test_step_kind_needs_label_and_space():
    assert step_kind("Thought 2: x") == "Thought"
    assert step_kind("Observation") is None
    assert step_kind(" Action 1: x") is None


def test_text_behind_the_finish_line_is_cut():
    assert clean_response(f" all men.\n{FINISH} sure\nThought 3: more") == f"all men.\n{FINISH} sure"


@pytest.mark.parametrize(
    "response",
    [
        "no finish at all",
        f"a\n{FINISH}\nThought 3: hm\nAction 3: Finish[The answer is C.]",
        "a\nThought 2: I could write Finish[The answer is B.]",
        "a\nAction 2: Finish[B]",
        "a\n Action 2: Finish[The answer is B.]",
    ],
    ids=["none", "two", "inside a thought", "other wording", "indented"],
)
@pytest.mark.parametrize("rules", ["1.0", "1.1"])
def test_exactly_one_finishing_action(response, rules):
    assert clean_response(response, rules=rules) is None


def test_finish_inside_a_thought_does_not_count_against_the_action():
    text = f"a\nThought 2: then Finish[The answer is A.] would be wrong\n{FINISH}"
    assert clean_response(text) == text


def test_next_question_is_cut_first():
    assert clean_response(f"a\n{FINISH}\n\nContext:\nAction 9: Finish[The answer is A.]") == f"a\n{FINISH}"
    assert clean_response(f"a\nContext:\nb\n{FINISH}") is None


def test_rules_1_0_keep_blank_continuation_and_empty_lines():
    text = f"a\n\nmore\nAction 1: \n{FINISH}"
    assert clean_response(text) == text


def test_rules_1_1_join_and_drop():
    text = f" a b\n\nmore\nThought 2: x\nAction 1: \nObservation 1: long enough\n tail\n{FINISH}"
    # "2: x" has 4 characters, "1: " has 3: both steps go.
    assert clean_response(text, rules="1.1") == f"a b more\nObservation 1: long enough  tail\n{FINISH}"


def test_rules_1_1_continuation_of_a_dropped_step_joins_the_step_before():
    assert clean_response(f"a\nAction 1: \nkept\n{FINISH}", rules="1.1") == f"a kept\n{FINISH}"


def test_rules_1_1_measure_up_to_a_repeated_label():
    assert clean_response(f"a\nThought 2: Thought of something\n{FINISH}", rules="1.1") == f"a\n{FINISH}"
    assert clean_response("a\nAction 2: Action Finish[The answer is B.]", rules="1.1") is None


def test_min_lines():
    text = f"a\nThought 2: bcdef\n{FINISH}"
    assert clean_response(text, min_lines=3) == text
    assert clean_response(text, min_lines=4) is None


def test_unknown_rules():
    with pytest.raises(ValueError, match="1.2"):
        clean_response(FINISH, rules="1.2")
