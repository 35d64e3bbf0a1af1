"""maj@k: the probability that the answer most of k responses agree on is right."""

from collections import Counter
from collections.abc import Hashable, Sequence
from fractions import Fraction
from math import comb
from typing import Literal

Abstention = Literal["silent", "vote"]


def maj_at_k(
    classes: Sequence[Hashable | None], right: Hashable | None, k: int, abstention: Abstention = "silent"
) -> float:
    """Exact expectation of maj@k over every ordered choice of k of the n responses, without replacement.

    In a random order, which of several equally frequent classes was seen first is uniform; so the usual rule "ties to
    the first seen" gives each tied class the same probability, and the expectation needs no sampling. A choice in
    which no response has an answer is wrong. For k = n, ties alone leave anything to chance.

    Args:
        classes: equivalence class of each response's answer; None where it has no answer.
        right: the class that equals the gold answer; None when no response has it.
        k: number of responses that vote.
        abstention: "silent", a response without an answer takes a place and does not vote; "vote", having no answer
            is a class of its own, which can win and is wrong.

    Raises:
        ValueError: unless 1 <= k <= n.
    """
    n = len(classes)
    if not 1 <= k <= n:
        raise ValueError(f"maj@{k} needs at least {k} responses per problem and k >= 1, found n={n}; sample more")
    counts = Counter(classes)
    silent = 0 if abstention == "vote" else counts.pop(None, 0)
    if right is None or right not in counts:
        return 0.0
    ours = counts.pop(right)
    expectation = sum(
        (comb(ours, votes) * _share_of_wins(tuple(counts.values()), silent, votes, k - votes))
        for votes in range(1, min(ours, k) + 1)
    )
    return float(expectation / comb(n, k))


def _share_of_wins(others: Sequence[int], silent: int, votes: int, places: int) -> Fraction:
    """Ways to fill `places` from the other classes and the silent so that none has more than `votes`.

    A way in which j others have exactly `votes` counts 1 / (j + 1): our part of the tie.
    """
    ways = {(filled, 0): comb(silent, filled) for filled in range(min(silent, places) + 1)}
    for size in others:
        extended: Counter[tuple[int, int]] = Counter()
        for (filled, ties), count in ways.items():
            for taken in range(min(size, votes, places - filled) + 1):
                extended[filled + taken, ties + (taken == votes)] += count * comb(size, taken)
        ways = extended
    return sum((Fraction(count, ties + 1) for (filled, ties), count in ways.items() if filled == places), Fraction(0))


def majority_of_first(classes: Sequence[Hashable | None], k: int, abstention: Abstention = "silent") -> Hashable | None:
    """The most frequent class of the first k responses in the order they were sampled, ties to the first seen.

    One draw instead of the expectation: the rule of published scripts. None when no response has an answer, or, with
    `abstention="vote"`, when having no answer won.

    Raises:
        ValueError: unless 1 <= k <= n.
    """
    if not 1 <= k <= len(classes):
        raise ValueError(f"maj@{k} needs at least {k} responses per problem and k >= 1, found n={len(classes)}")
    voters = [name for name in classes[:k] if name is not None or abstention == "vote"]
    if not voters:
        return None
    counts = Counter(voters)
    return max(counts, key=counts.__getitem__)
