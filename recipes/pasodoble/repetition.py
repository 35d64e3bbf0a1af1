"""Measure repetition within a batch: clusters of questions by their wording.

Source: R-Zero (arXiv 2508.05004), ``caller_penalty.py``: distance 1 - sentence BLEU with smoothing 1 on white-space
tokens, average linkage, cut at 0.5; a question's repetition is the share of the batch in its cluster.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

MAX_ORDER = 4
EPSILON = 0.1
CUT = 0.5


def repetition(questions: Sequence[str], *, cut: float = CUT) -> list[float]:
    """Compute the share of the batch, in (0, 1], that lies in the cluster of each question.

    Args:
        cut: clusters are joined while their mean distance is at most this.
    """
    tokens = [question.split() for question in questions]
    n = len(tokens)
    distances = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1, n):
            distances[i, j] = distances[j, i] = 1 - sentence_bleu(tokens[j], tokens[i])
    sizes = [0.0] * n
    for members in average_linkage(distances, cut):
        for place in members:
            sizes[place] = len(members) / n
    return sizes


def sentence_bleu(reference: Sequence[str], hypothesis: Sequence[str]) -> float:
    """Compute BLEU of one sentence up to 4-grams; no match counts as 0.1 matches (NLTK's smoothing 1)."""
    if not hypothesis or not _matches(reference, hypothesis, 1):
        return 0.0
    logs = 0.0
    for order in range(1, MAX_ORDER + 1):
        total = max(1, len(hypothesis) - order + 1)
        logs += math.log((_matches(reference, hypothesis, order) or EPSILON) / total)
    brevity = min(1.0, math.exp(1 - len(reference) / len(hypothesis)))
    return brevity * math.exp(logs / MAX_ORDER)


def average_linkage(distances: np.ndarray, cut: float) -> list[list[int]]:
    """Clusters of a symmetric (n, n) distance matrix: the two with the least mean distance join until it exceeds
    `cut`."""
    clusters = [[place] for place in range(len(distances))]
    between: np.ndarray = distances.astype(float).copy()
    np.fill_diagonal(between, np.inf)
    while len(clusters) > 1:
        i, j = sorted(np.unravel_index(np.argmin(between), between.shape))
        if between[i, j] > cut:
            break
        weights = len(clusters[i]), len(clusters[j])
        joined = np.average([between[i], between[j]], axis=0, weights=weights)
        between[i], between[:, i] = joined, joined
        between[i, i] = np.inf
        clusters[i] += clusters.pop(j)
        between = np.delete(np.delete(between, j, axis=0), j, axis=1)
    return clusters


def _matches(reference: Sequence[str], hypothesis: Sequence[str], order: int) -> int:
    return (_ngrams(reference, order) & _ngrams(hypothesis, order)).total()


def _ngrams(tokens: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))
