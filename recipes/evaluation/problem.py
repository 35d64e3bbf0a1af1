"""One problem of a benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# String columns that a benchmark's prompt may name beside the question and its options.
PROMPT_FIELDS = ("text", "context", "title", "table")


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        messages: a ready conversation, for data in verl's format; then `question` is its last user message.
        options: answer options of a multiple-choice question, in order.
        group: subject or level, for accuracies by group.
        fields: the columns of PROMPT_FIELDS that the row has.
    """

    id: str
    question: str
    gold: Any
    messages: tuple[dict[str, str], ...] = ()
    options: tuple[str, ...] = ()
    group: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
