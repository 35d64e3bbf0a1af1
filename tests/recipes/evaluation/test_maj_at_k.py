"""maj@k against enumeration of every ordered choice with ties to the first seen."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.evaluation.stats import maj_at_k, majority_of_first


@st.composite
def votes(draw):
    n = draw(st.integers(1, 6))
    classes = draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=n, max_size=n))
    return classes, draw(st.sampled_from(["a", "b", None])), draw(st.integers(1, n))


@given(votes(), st.sampled_from(["silent", "vote"]))
@settings(deadline=None)
def test_equals_the_mean_over_every_ordered_choice(vote, abstention):
    classes, right, k = vote
    orders = list(permutations(classes, k))
    wins = [right is not None and majority_of_first(order, k, abstention) == right for order in orders]
    assert maj_at_k(classes, right, k, abstention) == pytest.approx(sum(wins) / len(wins), abs=1e-12)


def test_one_vote_is_the_mean_accuracy():
    assert maj_at_k(["a", "a", "b", None], "a", 1) == pytest.approx(0.5)


def test_all_votes_leave_only_ties_to_chance():
    assert maj_at_k(["a", "a", "b"], "a", 3) == 1.0
    assert maj_at_k(["a", "b"], "a", 2) == 0.5
    assert maj_at_k(["a", "b", "c"], "a", 3) == pytest.approx(1 / 3)


def test_having_no_answer_is_silent_or_a_wrong_class():
    classes = ["a", None, None]
    assert maj_at_k(classes, "a", 3, "silent") == 1.0
    assert maj_at_k(classes, "a", 3, "vote") == 0.0
    assert maj_at_k([None, None], "a", 2) == 0.0


def test_a_gold_answer_that_no_response_has_is_never_right():
    assert maj_at_k(["a", "a"], None, 2) == 0.0
    assert maj_at_k([None, None], None, 2, "vote") == 0.0


@pytest.mark.timeout(30)
def test_256_responses_and_64_votes_stay_quick():
    classes = [number % 23 for number in range(256)]
    assert 0.0 < maj_at_k(classes, 0, 64) < 1.0


def test_the_first_k_vote_in_the_order_they_were_sampled():
    assert majority_of_first(["b", "a", "a", "b"], 4) == "b"
    assert majority_of_first(["b", "a", "a", "b"], 3) == "a"
    assert majority_of_first([None, "a"], 2) == "a"
    assert majority_of_first([None, "a"], 2, "vote") is None


@pytest.mark.parametrize("k", [0, 3])
def test_more_votes_than_responses_are_refused(k):
    with pytest.raises(ValueError, match="needs at least"):
        maj_at_k(["a", "b"], "a", k)
    with pytest.raises(ValueError, match="needs at least"):
        majority_of_first(["a", "b"], k)
