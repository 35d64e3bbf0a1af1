"""The diversity history: what counts as similar, when questions enter, and that it survives a resume."""

import json
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.pasodoble.diversity import DiversityHistory

token_ids = st.lists(st.integers(0, 6), max_size=6)
rounds_of_questions = st.lists(st.lists(token_ids, min_size=1, max_size=4), max_size=8)


def test_an_empty_history_gives_one():
    assert DiversityHistory().score([[1, 2], []]) == [1.0, 1.0]


def test_ten_identical_questions_give_zero():
    history = DiversityHistory()
    history.score([[1, 2, 3]] * 10)
    history.commit()
    assert history.score([[3, 2, 1, 1]]) == [0.0]


def test_jaccard_of_exactly_the_threshold_is_different():
    history = DiversityHistory()
    history.score([[1, 2, 3, 4, 5]])
    history.commit()
    assert history.score([[1, 2, 3, 4]]) == [1.0]
    history.commit([False])
    assert history.score([[1, 2, 3, 4, 5, 1]]) == [0.0]


def test_two_empty_questions_are_alike_and_one_is_like_nothing_else():
    history = DiversityHistory()
    history.score([[], [1]])
    history.commit()
    assert history.score([[], [1], [2]]) == [0.5, 0.5, 1.0]


def test_questions_of_one_round_are_not_compared_with_each_other():
    history = DiversityHistory()
    assert history.score([[1], [1], [1]]) == [1.0] * 3
    assert history.score([[1]]) == [1.0]
    assert len(history) == 0
    assert history.commit() == 4
    assert len(history) == 4


def test_the_oldest_question_leaves_first():
    history = DiversityHistory(maxlen=2)
    history.score([[1], [2], [3]])
    history.commit()
    assert history.score([[1], [2], [3]]) == [1.0, 0.5, 0.5]


def _by_the_definition(rounds, maxlen, threshold):
    past, scores = deque(maxlen=maxlen), []
    for questions in rounds:
        sets = [set(q) for q in questions]
        row = []
        for q in sets:
            similar = sum((len(q & h) / len(q | h) if q | h else 1.0) > threshold for h in past)
            row.append((len(past) - similar) / len(past) if past else 1.0)
        scores.append(row)
        past.extend(sets)
    return scores


@given(rounds_of_questions, st.integers(1, 6), st.sampled_from([0.0, 0.5, 0.8, 1.0]))
def test_scores_follow_the_definition(rounds, maxlen, threshold):
    history, scores = DiversityHistory(maxlen=maxlen, threshold=threshold), []
    for questions in rounds:
        scores.append(history.score(questions))
        history.commit()
    assert scores == _by_the_definition(rounds, maxlen, threshold)


@given(rounds_of_questions, rounds_of_questions)
def test_a_resumed_history_goes_on_as_if_uninterrupted(before, after):
    history = DiversityHistory(maxlen=5)
    for questions in before:
        history.score(questions)
        history.commit()
    resumed = DiversityHistory(maxlen=5)
    resumed.load_state_dict(json.loads(json.dumps(history.state_dict())))
    for questions in after:
        assert history.score(questions) == resumed.score(questions)
        assert history.commit() == resumed.commit()
    assert history.state_dict() == resumed.state_dict()


def test_wrong_use_is_refused():
    history = DiversityHistory()
    history.score([[1]])
    with pytest.raises(ValueError, match="1 questions were scored, but admit has 2"):
        history.commit([True, False])
    with pytest.raises(RuntimeError, match="not committed"):
        history.state_dict()


def test_what_was_scored_before_a_state_is_loaded_is_forgotten():
    history = DiversityHistory()
    state = history.state_dict()
    history.score([[1]])
    history.load_state_dict(state)
    assert history.commit() == 0
