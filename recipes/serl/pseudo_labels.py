"""Advantages from all answers of a group in place of the majority's alone.

Source: RESTRAIN (arXiv 2510.02172), whose code is not public; what the paper leaves open is ours (specs/extensions,
section 2).
"""

import math
from collections import Counter
from collections.abc import Sequence

CENTRE, WIDTH = 1.0, 0.5
"""Share of the answers to which the weights lean, and the deviation of the Gaussian around it."""


def answer_weights(counts: Sequence[int], n: int) -> list[float]:
    """The weight of each distinct answer as a label: a Gaussian of its share of the `n` answers, normalised to 1."""
    densities = [math.exp(-((count / n - CENTRE) ** 2) / (2 * WIDTH**2)) for count in counts]
    return [density / sum(densities) for density in densities]


def restrain_advantages(classes: Sequence[int | None], *, least: int = 3, penalty: float = 1.0) -> list[float]:
    """RESTRAIN: the advantage of each response of a group.

    Each distinct answer takes its turn as the label; the responses' GRPO advantages under it (sample deviation) are
    averaged with `answer_weights`. Where fewer than `least` responses share the most frequent answer there is no label
    to believe in, and every response is discouraged by `penalty`.

    Args:
        classes: class of each response's answer; None for none, which is wrong under every label.

    Raises:
        ValueError: fewer than two responses.
    """
    n = len(classes)
    if n < 2:
        raise ValueError(f"a group needs at least two responses, found {n}")
    counts = Counter(number for number in classes if number is not None)
    if max(counts.values(), default=0) < least:
        return [-penalty] * n
    advantages = [0.0] * n
    for (number, count), weight in zip(counts.items(), answer_weights(list(counts.values()), n), strict=True):
        mean = count / n
        deviation = math.sqrt(n / (n - 1) * mean * (1 - mean))
        if deviation > 0:
            for place, other in enumerate(classes):
                advantages[place] += weight * ((other == number) - mean) / deviation
    return advantages
