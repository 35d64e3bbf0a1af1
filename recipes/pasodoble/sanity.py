"""Check a proposed pair: it is complete, and the question does not give its answer away.

Source: PasoDoble, ``proposer_reward_hacking_check`` in ``pasodoble_online.py``.
"""

import re
from typing import Literal

from recipes.pasodoble.parsing import extract_answer

LeakCheck = Literal["substring", "token"]
Fault = Literal["missing", "question_in_answer", "box_in_question", "answer_in_question"]
FAULTS: tuple[Fault, ...] = ("missing", "question_in_answer", "box_in_question", "answer_in_question")


def find_fault(question: str | None, answer: str | None, *, leak_check: LeakCheck = "substring") -> Fault | None:
    """Return the first rule that the pair breaks, or None.

    An empty question or answer is ``missing``: the original reaches the same zero because an empty string is part of
    every string. ``leak_check="substring"`` is the original's last rule and rejects the answer 2 for ``x^2`` and
    ``12``; ``"token"`` asks that the answer stand in the question as a number or word of its own.
    """
    if not question or not answer:
        return "missing"
    if question in answer:
        return "question_in_answer"
    if extract_answer(question) is not None:
        return "box_in_question"
    contains = _contains_token if leak_check == "token" else str.__contains__
    return "answer_in_question" if contains(question, answer) else None


def _contains_token(question: str, answer: str) -> bool:
    not_inside_before = r"(?<![\w\\^_])(?<!\d\.)(?<!\^\{)(?<!_\{)"
    if re.match(r"\d{3}(?!\d)", answer):  # a group of thousands
        not_inside_before += r"(?<!\d,)"
    not_inside_after = r"(?![\w^_]|\.\d|,\d{3})"
    return re.search(not_inside_before + re.escape(answer) + not_inside_after, question) is not None
