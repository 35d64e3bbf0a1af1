"""ROUGE-L against the rouge-score package, value by value and decision by decision."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from recipes.serl import pool
from recipes.serl.pool import RougeIndex, tokenize

REFERENCE = RougeScorer(["rougeL"], use_stemmer=False)
TEXTS = st.text(alphabet="abAB 1.$\\éİK\n", max_size=40) | st.text(max_size=30)


def max_rouge_l(candidate: str, pool: list[str], *, floor: float = 0.0) -> float:
    return RougeIndex(pool, "reference").max_rouge_l(candidate, floor=floor)


def rouge_l(a: str, b: str) -> float:
    return max_rouge_l(b, [a])


def reference(a: str, b: str) -> float:
    return REFERENCE.score(a, b)["rougeL"].fmeasure


def random_text(rng: random.Random) -> str:
    vocabulary = [
        "Find",
        "x",
        "if",
        "$2x+3=11$",
        "the",
        "sum",
        "of",
        "\\frac{1}{2}",
        "A",
        "train",
        "12",
        "km/h",
        "été",
        "—",
    ]
    vocabulary += [f"w{i}" for i in range(rng.choice([0, 10, 200]))]
    return " ".join(rng.choice(vocabulary) for _ in range(rng.randint(0, rng.choice([3, 20, 70]))))


def test_equal_to_rouge_score_on_5000_random_pairs():
    rng = random.Random(0)
    worst = 0.0
    for _ in range(5000):
        a, b = random_text(rng), random_text(rng)
        worst = max(worst, abs(rouge_l(a, b) - reference(a, b)))
    assert worst <= 1e-9


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_equal_to_rouge_score_to_the_last_bit(a, b):
    assert rouge_l(a, b) == reference(a, b) == rouge_l(b, a)


@settings(deadline=None)
@given(TEXTS, st.lists(TEXTS, max_size=8), st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]))
def test_maximum_and_decision_equal_the_reference_loop(candidate, pool, floor):
    expected = max((reference(candidate, text) for text in pool), default=0.0)
    assert max_rouge_l(candidate, pool) == expected
    above = expected if expected > floor else 0.0
    assert max_rouge_l(candidate, pool, floor=floor) == above


def counted(common: int, own: int, mark: str) -> str:
    return " ".join([f"c{i}" for i in range(common)] + [f"{mark}{i}" for i in range(own)])


@pytest.mark.parametrize(
    ("common", "n", "m"), [(7, 10, 10), (7, 8, 12), (7, 9, 11), (14, 20, 20), (14, 14, 26), (21, 30, 30), (8, 10, 10)]
)
def test_decision_at_the_threshold_is_that_of_rouge_score(common, n, m):
    a, b = counted(common, n - common, "a"), counted(common, m - common, "b")
    assert (max_rouge_l(a, [b], floor=0.7) > 0.7) == (reference(a, b) > 0.7)
    assert rouge_l(a, b) == reference(a, b)


def test_seven_of_ten_is_exactly_the_threshold_and_not_above_it():
    assert rouge_l(counted(7, 3, "a"), counted(7, 3, "b")) == 0.7
    assert max_rouge_l(counted(7, 3, "a"), [counted(7, 3, "b")], floor=0.7) == 0.0


def test_latex_operators_and_case_are_invisible():
    assert tokenize("Find $\\frac{X}{2}$!", "reference") == [b"find", b"frac", b"x", b"2"]
    assert rouge_l("Find $x^2$", "find (x 2)") == 1.0


@pytest.mark.parametrize("text", ["", "   ", "$!?", "été"[0]])
def test_texts_without_tokens_are_similar_to_nothing(text):
    assert rouge_l(text, text) == 0.0
    assert max_rouge_l(text, ["a b", text]) == 0.0
    assert max_rouge_l("a b", [text]) == 0.0


def test_index_grows_and_candidates_leave_no_trace():
    index = RougeIndex()
    assert index.max_rouge_l("one two") == 0.0
    for i in range(100):
        index.add(f"one two {i}")
        assert len(index) == i + 1
        assert index.max_rouge_l(f"unseen words {i}") == pytest.approx(1 / 3)
    assert index.max_rouge_l("one two 99") == 1.0


def test_of_equal_ratios_the_largest_measure_counts():
    """One common token of three and three, or three of three and fifteen: a third, and a third and one bit."""
    texts = ["a x y", " ".join(["a b c", *(f"w{i}" for i in range(12))])]
    first, second = (rouge_l(text, "a b c") for text in texts)
    assert first == 1 / 3 < second
    assert max_rouge_l("a b c", texts) == max_rouge_l("a b c", texts[::-1]) == second


def test_a_floor_leaves_shorter_texts_in_and_the_lengths_of_others_alone():
    candidate = counted(8, 0, "a")
    assert max_rouge_l(candidate, [counted(6, 0, "b")], floor=0.5) == pytest.approx(12 / 14)
    assert max_rouge_l(candidate, [counted(5, 3, "b"), counted(0, 20, "b")], floor=0.5) == 0.625


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("Сколько будет 12 и 7?", "Найдите разность 12 7.", False),
        ("Solve x^2+3x-4 = 0", "Solve x^2-3x+4 = 0", False),
        ("What is 5! now?", "What is 5 now?", False),
        ("求12和7的和", "求12和7的差", False),
        ("Find X now.", "find x, now!", True),
    ],
)
def test_by_default_all_scripts_and_signs_count(first, second, equal):
    assert (pool.rouge_l(first, second) == 1.0) is equal
