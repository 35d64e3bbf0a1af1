"""Rewards and advantages from more than the majority's answer: RESTRAIN, SCRL and RENT.

Sources: RESTRAIN (arXiv 2510.02172), whose code is not public, so that what the paper leaves open is ours; SCRL (arXiv
2603.19880), `scrl_utils.py`; RENT (arXiv 2505.22660). See specs/extensions, section 2.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

CENTRE, WIDTH = 1.0, 0.5
"""Share of the answers to which the weights lean, and the deviation of the Gaussian around it."""
ENTROPY_WEIGHT = 0.1
NO_ANSWER_SCRL, NO_ANSWER_RENT = -1.0, -7.0


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


def positive_class(counts: Mapping[int, int], n: int, *, least: float, margin: float) -> int | None:
    """SCRL's positive label: the most frequent of `n` answers, if its share is `least` and leads by over `margin`."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    if not ranked:
        return None
    second = ranked[1][1] if len(ranked) > 1 else 0
    (number, first) = ranked[0]
    return number if first / n >= least and (first - second) / n > margin else None


def scrl_rewards(
    classes: Sequence[int | None],
    entropies: Sequence[float],
    counts: Mapping[int, int],
    n: int,
    *,
    least: float = 0.375,
    margin: float = 0.125,
    negative: float = 0.125,
) -> list[float]:
    """SCRL, continuous form: reward the positive label, punish rare answers that the policy was unsure of.

    A rare answer has a share under `negative` and a mean entropy of at least the group's. Every answer's reward falls
    with its entropy; a response without an answer gets -1.

    Args:
        classes: class of the answer of each response to reward; None for none.
        entropies: mean token entropy of each response under the policy that wrote it, in nats.
        counts: answers of each class among all that voted, of which those to reward may be a part.
        n: all that voted, those without an answer too.
        least, margin: of `positive_class`.
    """
    if len(classes) != len(entropies):
        raise ValueError(f"{len(classes)} answers and {len(entropies)} entropies")
    best = positive_class(counts, n, least=least, margin=margin)
    mean = sum(entropies) / len(entropies)
    of_class: dict[int, list[float]] = {}
    for number, entropy in zip(classes, entropies, strict=True):
        if number is not None:
            of_class.setdefault(number, []).append(entropy)
    rewards = {}
    for number, found in of_class.items():
        share, above = counts[number] / n, sum(found) / len(found) - mean
        label = share if number == best else share - negative if share < negative and above >= 0 else 0.0
        rewards[number] = label - ENTROPY_WEIGHT * above
    return [NO_ANSWER_SCRL if number is None else rewards[number] for number in classes]


def rent_rewards(classes: Sequence[int | None], entropies: Sequence[float]) -> list[float]:
    """RENT: minus the mean token entropy of each response, in nats; -7 for a response without an answer."""
    return [NO_ANSWER_RENT if number is None else -entropy for number, entropy in zip(classes, entropies, strict=True)]
