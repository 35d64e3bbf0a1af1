"""Which responses count: the denominator of every accuracy, stated with it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Rule = Literal["all", "parsable"]
# Reasons with which a grader says that a response holds no answer it could read.
UNPARSABLE = frozenset(
    {
        "no_answer",
        "no_finish",
        "missing",
        "not_text",
        "no_box",
        "unclosed_box",
        "empty_box",
        "no_phrase",
        "empty_phrase",
        "only_thinking",
        "empty",
        "unparsable",
        "too_long",
        "too_deep",
        "too_many_digits",
    }
)


@dataclass(frozen=True)
class Denominator:
    """What an accuracy was divided by.

    Attributes:
        rule: "all", every judged response counts and one without an answer is wrong; "parsable", a response without a
            readable answer is left out, as the published evaluation of SeRL does. The second favours models whose
            wrong responses hold no readable answer.
        counted: responses in the denominator.
        excluded: responses left out, by reason. Under "all", only those that no grader could judge (a faulty gold
            answer, an infrastructure fault).
    """

    rule: Rule
    counted: int
    excluded: dict[str, int]


def counts(status: str, reason: str, rule: Rule) -> bool:
    """Whether one graded response is in the denominator. `status` is "score" or "skip"."""
    return status == "score" and not (rule == "parsable" and reason.partition(":")[0] in UNPARSABLE)


def denominator(graded: Iterable[tuple[str, str]], rule: Rule) -> Denominator:
    """The denominator of graded responses, given as (status, reason)."""
    counted, excluded = 0, Counter()
    for status, reason in graded:
        if counts(status, reason, rule):
            counted += 1
        else:
            excluded[reason.partition(":")[0] or status] += 1
    return Denominator(rule, counted, dict(sorted(excluded.items())))
