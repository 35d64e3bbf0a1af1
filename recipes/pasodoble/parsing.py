"""Read question and answer from a completion.

Source: PasoDoble, ``reward_utils.py``. Both functions take time linear in the length of the completion, whatever it
contains, and find boxes where the original's recursive pattern finds them.
"""

import re
from typing import Literal

from reward_fns.text import after_thinking

Convention = Literal["default", "reference"]
_END_OF_THINKING = "</think>"
_PROBLEM_START, _PROBLEM_END = "<problem>", "</problem>"
_BOX = re.compile(r"\\boxed\s*\{")


def extract_question(completion: str) -> str:
    """Return the first ``<problem>...</problem>`` after the last ``</think>``, stripped; empty if either is missing."""
    return _problem_and_rest(completion)[0]


def _problem_and_rest(completion: str) -> tuple[str, str]:
    """The first problem after the thoughts, and what stands between it and the next one."""
    _, thought, rest = completion.rpartition(_END_OF_THINKING)
    _, opened, rest = rest.partition(_PROBLEM_START)
    question, closed, rest = rest.partition(_PROBLEM_END)
    complete = bool(thought and opened and closed)
    return (question.strip(), rest.partition(_PROBLEM_START)[0]) if complete else ("", "")


def extract_answer(completion: str, convention: Convention = "default") -> str | None:
    r"""The content of the last closed ``\boxed{...}``, stripped; ``None`` if no box closes.

    ``default`` reads what is addressed to the reader: of a completion with a problem, what stands between that problem
    and the next one; of another, what follows the thoughts, and all of it where there are none. ``reference`` reads the
    whole completion, thoughts included, as the original does: a cut-off answer then takes a box of the thoughts.

    Braces may nest. ``\{`` and ``\}`` are literal, except where only reading their brace as a real one lets the box
    close. A box inside another box belongs to the outer one.
    """
    if convention == "default":
        if _PROBLEM_START in completion.rpartition(_END_OF_THINKING)[2]:
            completion = _problem_and_rest(completion)[1]
        else:
            completion = after_thinking(completion)
    closable = _closable_depths(completion) if "\\boxed" in completion else []
    last, position = None, 0
    while match := _BOX.search(completion, position):
        start = match.end()
        if closable[start] < 1:
            position = match.start() + 1
            continue
        end = _closing_brace(completion, start, closable)
        last, position = completion[start:end], end + 1
    return None if last is None else last.strip()


def _is_escaped_brace(text: str, i: int) -> bool:
    return text[i] == "\\" and text[i + 1 : i + 2] in ("{", "}")


def _closable_depths(text: str) -> list[int]:
    """At each position, the largest number of open braces that the rest of the text can still close."""
    depths = [0] * (len(text) + 2)
    for i in range(len(text) - 1, -1, -1):
        if text[i] == "}":
            depths[i] = depths[i + 1] + 1
        elif text[i] == "{":
            depths[i] = max(depths[i + 1] - 1, 0)
        elif _is_escaped_brace(text, i):
            depths[i] = max(depths[i + 2], depths[i + 1])
        else:
            depths[i] = depths[i + 1]
    return depths


def _closing_brace(text: str, start: int, closable: list[int]) -> int:
    depth, i = 1, start
    while True:
        if _is_escaped_brace(text, i):
            i += 2 if depth <= closable[i + 2] else 1
            continue
        if text[i] == "{":
            depth += 1
        elif text[i] == "}":
            depth -= 1
            if depth == 0:
                return i
        i += 1


LeakCheck = Literal["substring", "token"]
Fault = Literal["missing", "question_in_answer", "box_in_question", "answer_in_question"]
FAULTS: tuple[Fault, ...] = ("missing", "question_in_answer", "box_in_question", "answer_in_question")


def find_fault(question: str | None, answer: str | None, *, leak_check: LeakCheck = "substring") -> Fault | None:
    """Return the first rule that a proposed pair breaks, or None: it must be complete, and not give its answer away.

    Source: PasoDoble, ``proposer_reward_hacking_check`` in ``pasodoble_online.py``.

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
