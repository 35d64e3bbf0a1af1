"""Transfer utility: how much of a senior's reasoning a junior needs to be given before it reaches the answer.

A right solo response of the senior is cut after some of its n sentences; the junior goes on from each cut, and c_j
says whether it was right. The last sentence is never given, and j = 0 is the junior alone, to be reported beside the
utility. The answer must be read from the junior's continuation, or an answer in the prefix would count.
Protocol and names: arXiv 2603.20508.
"""

import re
from collections import Counter
from collections.abc import Sequence
from math import log
from statistics import fmean

BINS = tuple(range(2, 101, 2))
# A sentence ends after ., ! or ? with a space behind it, or with its line.
SENTENCE_END = r"(?<=[.!?])[ \t]+|\n+"


def sentences(text: str, end: str = SENTENCE_END) -> list[str]:
    """The sentences of a response, each with what separates it from the next, so that joined they are the text again.

    Args:
        end: regular expression of what stands between two sentences.
    """
    found, start = [], 0
    for match in re.finditer(end, text):
        if match.end() > match.start() and text[start : match.start()].strip():
            found.append(text[start : match.end()])
            start = match.end()
    if text[start:].strip():
        found.append(text[start:])
    elif found:
        found[-1] += text[start:]
    return found


def cuts(number: int, every: int = 3) -> list[int]:
    """How many of `number` sentences are given: 0, every, 2 every, ..., and number - 1.

    Raises:
        ValueError: no sentence.
    """
    if number < 1:
        raise ValueError("found a response without sentences; expected at least one")
    return sorted({*range(0, number, every), number - 1})


def percents(cuts: Sequence[int], sentences: int) -> list[float]:
    """How much of a response of `sentences` sentences each cut gives, in percent: 100 j / n."""
    return [100.0 * cut / sentences for cut in cuts]


def curve(given: Sequence[float], right: Sequence[float]) -> list[float]:
    """c at the right edge of each bin (2, 4, ..., 100 percent): linear between the cuts, flat outside them.

    Args:
        given: percent of the response given at each cut, rising.
        right: c at each cut, in [0, 1].

    Raises:
        ValueError: no cut, another number of values, or percents that do not rise.
    """
    if not given or len(given) != len(right):
        raise ValueError(f"found {len(given)} cuts and {len(right)} values; expected as many of each, at least one")
    if any(second <= first for first, second in zip(given, given[1:], strict=False)):
        raise ValueError(f"the cuts {list(given)} do not rise")
    return [_value_at(edge, given, right) for edge in BINS]


def _value_at(edge: float, given: Sequence[float], right: Sequence[float]) -> float:
    after = next((place for place, percent in enumerate(given) if percent >= edge), None)
    if after is None:
        return float(right[-1])
    if after == 0:
        return float(right[0])
    start, end = given[after - 1], given[after]
    return right[after - 1] + (right[after] - right[after - 1]) * (edge - start) / (end - start)


def first_order(given: Sequence[float], right: Sequence[float]) -> float:
    """FOTU of one response: the mean of its curve over the bins."""
    return sum(curve(given, right)) / len(BINS)


def second_order(first_successes: Sequence[float]) -> float:
    """SOTU: entropy of the bin of the first success, over the log of the number of bins.

    Args:
        first_successes: for each response, the percent at which the junior was first right; responses that it never
            solved are left out by the caller, who counts them.

    Raises:
        ValueError: no response, or a percent outside [0, 100].
    """
    if not first_successes or not all(0 <= percent <= 100 for percent in first_successes):
        raise ValueError(f"expected percents between 0 and 100, at least one; found {list(first_successes)}")
    counts = Counter(next(edge for edge in BINS if percent <= edge) for percent in first_successes)
    shares = [count / len(first_successes) for count in counts.values()]
    return -sum(share * log(share) for share in shares) / log(len(BINS))


def regression_rate(right: Sequence[float]) -> float:
    """Share of neighbouring cuts at which the junior, given more, goes from right (c >= 0.5) to wrong.

    Raises:
        ValueError: fewer than two cuts.
    """
    if len(right) < 2:
        raise ValueError(f"found {len(right)} cuts; expected at least two")
    falls = sum(first >= 0.5 > second for first, second in zip(right, right[1:], strict=False))
    return falls / (len(right) - 1)


def summarise(traces: Sequence[tuple[Sequence[float], Sequence[float]]]) -> dict[str, float]:
    """The numbers of several responses: of each, the percents given and c at them, the first at 0 percent.

    Returns:
        traces: their number. first_order: mean of the responses' FOTU; alone: mean of c_0, the junior without a prefix;
        never_right: responses that the junior solved from no cut. second_order, of the others, and regression_rate,
        over all neighbouring cuts, are left out where nothing gives them, and without a response so is all but the
        number.
    """
    found: dict[str, float] = {"traces": len(traces)}
    if not traces:
        return found
    firsts = [next((given for given, c in zip(*trace, strict=True) if c >= 0.5), None) for trace in traces]
    solved = [percent for percent in firsts if percent is not None]
    neighbours = [(regression_rate(right), len(right) - 1) for _, right in traces if len(right) > 1]
    found |= {
        "first_order": fmean(first_order(given, right) for given, right in traces),
        "alone": fmean(right[0] for _, right in traces),
        "never_right": len(traces) - len(solved),
    }
    if solved:
        found["second_order"] = second_order(solved)
    if neighbours:
        found["regression_rate"] = sum(rate * count for rate, count in neighbours) / sum(n for _, n in neighbours)
    return found
