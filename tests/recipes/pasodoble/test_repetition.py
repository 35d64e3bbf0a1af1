"""Clusters of questions by wording: BLEU, average linkage, and shares of a batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.pasodoble.repetition import average_linkage, repetition, sentence_bleu


def bleu(reference, hypothesis):
    return sentence_bleu(reference.split(), hypothesis.split())


def test_bleu_of_one_sentence():
    text = "the cat sat on the mat"
    assert bleu(text, text) == pytest.approx(1)
    assert bleu(text, "dogs run") == bleu(text, "") == 0
    # matches 5 of 6, 3 of 5, 2 of 4, 1 of 3
    assert bleu(text, "the cat sat on a mat") == pytest.approx((5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    # too short for 4-grams, which count as 0.1 of 1; and a brevity penalty of exp(1 - 6 / 3)
    assert bleu(text, "the cat sat") == pytest.approx(np.exp(-1) * 0.1**0.25)
    # longer than the reference: no bonus
    assert bleu("the cat sat on", "the cat sat on a mat") == pytest.approx((4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    # words in another order match alone
    assert bleu("a b", "b a") == pytest.approx(0.1**0.75)
    # a word that stands twice in the reference counts twice at most
    assert bleu("the the a", "the the the") == pytest.approx((2 / 3 * 1 / 2 * 0.1 * 0.1) ** 0.25)


def test_the_share_of_a_batch_in_the_cluster_of_each_question():
    long = "how many apples does the old man carry home from the market on monday"
    batch = [long, long + " morning", "what is the square root of two hundred and fifty six", long]
    assert repetition(batch) == [0.75, 0.75, 0.25, 0.75]
    assert repetition([]) == [] and repetition([""]) == [1.0]
    assert repetition(["", "", "one"]) == [pytest.approx(1 / 3)] * 3, "what says nothing repeats nothing"


def test_the_later_question_of_a_pair_is_the_reference():
    """The long one against the short one has a BLEU of 0.51, the short one against the long one of 0.47."""
    words = [f"w{number}" for number in range(14)]
    short, long = " ".join(words[:8]), " ".join(words)
    assert repetition([short, long]) == [0.5, 0.5] and repetition([long, short]) == [1.0, 1.0]


def test_linkage_takes_the_mean_over_all_pairs():
    # the third is 0.4 from the first and 0.7 from the second: 0.55 from their cluster
    distances = np.array([[0, 0.1, 0.4], [0.1, 0, 0.7], [0.4, 0.7, 0]])
    assert average_linkage(distances, 0.5) == [[0, 1], [2]]
    assert average_linkage(distances, 0.55) == [[0, 1, 2]]


@given(st.integers(1, 7), st.integers(0, 2**31))
def test_linkage_by_running_means_is_that_over_all_pairs(n, seed):
    square = np.random.default_rng(seed).random((n, n))
    distances = np.triu(square, 1) + np.triu(square, 1).T
    clusters = [[place] for place in range(n)]
    while len(clusters) > 1:
        means = {
            (i, j): distances[np.ix_(clusters[i], clusters[j])].mean()
            for i in range(len(clusters))
            for j in range(i + 1, len(clusters))
        }
        i, j = min(means, key=means.get)
        if means[i, j] > 0.5:
            break
        clusters[i] += clusters.pop(j)
    found = average_linkage(distances, 0.5)
    assert {frozenset(members) for members in found} == {frozenset(members) for members in clusters}
