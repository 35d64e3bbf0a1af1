"""pass@k against enumeration of every subset."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.evaluation.stats import pass_at_k


@st.composite
def problems(draw):
    n = draw(st.integers(1, 9))
    correct = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return correct, draw(st.integers(1, n))


@given(problems())
def test_equals_the_share_of_subsets_with_a_right_response(problem):
    correct, k = problem
    subsets = list(combinations(correct, k))
    assert pass_at_k(len(correct), sum(correct), k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(1, 1, 1, 1.0), (1, 0, 1, 0.0), (16, 4, 1, 0.25), (4, 2, 2, 5 / 6), (10, 9, 2, 1.0), (5, 1, 5, 1.0)],
)
def test_known_values(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-15)


def test_many_responses_neither_overflow_nor_lose_precision():
    assert pass_at_k(10_000, 1, 1) == pytest.approx(1e-4, rel=1e-9)
    assert pass_at_k(10_000, 5_000, 1_000) == 1.0


@given(st.integers(1, 60), st.data())
def test_grows_with_k_and_with_c(n, data):
    c = data.draw(st.integers(0, n))
    values = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(c / n)
    if c < n:
        assert pass_at_k(n, c + 1, n) >= pass_at_k(n, c, n)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0), (0, 0, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match="found"):
        pass_at_k(n, c, k)
