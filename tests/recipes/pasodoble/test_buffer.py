"""The question buffer is a circle whose cursor survives iterations and resumes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.pasodoble.state import QuestionBuffer


def filled(count):
    buffer = QuestionBuffer()
    for i in range(count):
        buffer.append(f"q{i}", f"a{i}", 0.5)
    return buffer


def texts(buffer, count):
    return [question.question for question in buffer.draw(count)]


def test_fewer_questions_than_asked_repeat():
    assert texts(filled(4), 6) == ["q0", "q1", "q2", "q3", "q0", "q1"]


def test_an_empty_buffer_gives_nothing():
    assert texts(QuestionBuffer(), 6) == []


def test_the_cursor_goes_on_over_iterations_and_old_questions_come_first():
    buffer = filled(4)
    assert texts(buffer, 3) == ["q0", "q1", "q2"]
    buffer.append("q4", "a4", 0.5)
    assert texts(buffer, 3) == ["q3", "q4", "q0"]


def test_a_full_turn_starts_again_even_if_questions_are_added_behind():
    buffer = filled(3)
    assert texts(buffer, 3) == ["q0", "q1", "q2"]
    buffer.append("q3", "a3", 0.5)
    assert texts(buffer, 4) == ["q0", "q1", "q2", "q3"]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=12), st.integers(0, 11))
def test_a_resumed_buffer_goes_on_as_if_uninterrupted(actions, cut):
    buffer, seen, resumed_seen, resumed = QuestionBuffer(), [], [], None
    for step, (added, taken) in enumerate(actions):
        if step == cut:
            resumed = QuestionBuffer()
            resumed.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
            seen.clear()
        for target, out in ((buffer, seen), (resumed, resumed_seen)):
            if target is None:
                continue
            for i in range(added):
                target.append(f"q{step}.{i}", "a", 0.5)
            out += texts(target, taken)
    if resumed is not None:
        assert resumed_seen == seen
        assert resumed.state_dict() == buffer.state_dict()


@pytest.mark.parametrize("question, answer", [("", "1"), ("q", ""), ("q", None)])
def test_a_question_without_text_or_answer_is_refused(question, answer):
    with pytest.raises(ValueError, match="needs a text and an answer"):
        QuestionBuffer().append(question, answer, 0.5)


@pytest.mark.parametrize(("count", "cursor"), [(2, 2), (2, 5), (2, -1), (0, 1)])
def test_a_cursor_outside_the_buffer_is_refused(count, cursor):
    with pytest.raises(ValueError, match=f"cursor {cursor} lies outside"):
        QuestionBuffer().load_state_dict(filled(count).state_dict() | {"cursor": cursor})
