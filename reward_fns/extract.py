r"""Find the answer in a response: the last closed `\boxed{}`, or a final-answer phrase."""

import re
from dataclasses import dataclass
from typing import Literal

from reward_fns.errors import OptionError
from reward_fns.text import after_thinking, clean

AnswerScope = Literal["final", "anywhere"]

MAX_RESPONSE_CHARS = 1_000_000
"""A longer response is refused, not cut: its tail may be the middle of a thought."""

MAX_ANSWER_CHARS = 1_000
MAX_ANSWER_DEPTH = 40
MAX_DIGIT_RUN = 400
MAX_JOINED_BOXES = 64
MAX_GAP = 40

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_TOKEN = re.compile(r"(?P<box>\\{1,2}(?:boxed|fbox)(?![A-Za-z])\s*\{?)|\\.|[{}]", re.DOTALL)
_PHRASE = re.compile(
    r"(?:the\s+)?(?:final\s+answer|answer)\s*(?:is|:|=)\s*:?\s*(?=(?P<answer>[^\n]{1,1000}))|####\s*(?P<hash>[^\n]{1,1000})",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\.\s|\s(?:because|since|so|which|as|for)\s")
_JOINS = re.compile(
    r"(?=.*(?:,|and|or))[\s$]*(?:\\[()\],;]|\\quad)?\s*[,;]?\s*(?:\\[()\[,;]|\\quad)?[\s$]*"
    r"(?:\\text\s*\{\s*,?\s*(?:and|or)?\s*\}|and|or)?[\s$]*(?:\\[(\[,;]|\\quad)?[\s$]*(?:[A-Za-z]\s*=\s*)?",
    re.DOTALL,
)
"""What stands between two boxes of one answer."""
_DIGITS = re.compile(rf"\d{{{MAX_DIGIT_RUN + 1}}}")


@dataclass(frozen=True, slots=True)
class Extraction:
    """An answer text, or the reason why there is none (`text` is then "")."""

    text: str
    reason: str = ""


def scoped(response: str, answer_scope: AnswerScope = "final") -> str:
    """The cleaned text in which an answer counts: after the thinking (`final`), or all of it (`anywhere`).

    Raises:
        OptionError: an unknown scope.
    """
    if answer_scope not in ("final", "anywhere"):
        raise OptionError(f"answer_scope is {answer_scope!r}, expected 'final' or 'anywhere'")
    text = clean(response)
    return after_thinking(text) if answer_scope == "final" else text


def extract_boxed(response: str, answer_scope: AnswerScope = "final") -> Extraction:
    r"""The content of the last `\boxed{}` or `\fbox{}`, which must be closed.

    Boxes that a comma, "and" or "or" joins, and nothing else, are one answer: the list of their contents. Nested braces
    and escaped braces are honoured. A box inside a box is written out in its place. A last box without braces
    (`\boxed 5`, of which TeX would box one token) or never closed is no answer, whatever stood in an earlier one.
    """
    if len(response) > MAX_RESPONSE_CHARS:
        return Extraction("", "too_long")
    text = scoped(response, answer_scope)
    only_thinking = not text.strip() and bool(scoped(response, "anywhere").strip())
    boxes, seen = _closed_boxes(text)
    if not boxes:
        return Extraction("", "unclosed_box" if seen else "only_thinking" if only_thinking else "no_box")
    joined = [boxes[-1]]
    while len(joined) < min(len(boxes), MAX_JOINED_BOXES):
        before = boxes[-len(joined) - 1]
        gap = text[before.end + 1 : joined[0].start]
        if len(gap) > MAX_GAP or not _JOINS.fullmatch(gap):
            break
        joined.insert(0, before)
    contents = [unbox(text[box.content : box.end]).strip() for box in joined]
    return bounded(", ".join(contents) if all(contents) else contents[-1], "empty_box")


@dataclass(frozen=True, slots=True)
class _Box:
    """Where the command of a box starts, where its content starts, and where its closing brace stands."""

    start: int
    content: int
    end: int


def _closed_boxes(text: str) -> tuple[list[_Box], bool]:
    """The outermost closed boxes in order, none when the last box is not closed; and whether there is any box.

    One pass, from the first box on: a text full of boxes that are never closed must not cost the square of its length.
    """
    first = _BOX.search(text)
    if first is None:
        return [], False
    open_braces: list[tuple[int, int]] = []  # a box's start and content, or (-1, -1) for a plain brace
    closed: list[_Box] = []
    newest, last_is_closed, seen = -1, False, False
    for token in _TOKEN.finditer(text, first.start()):
        if token["box"]:
            seen, last_is_closed, newest = True, False, -1
            if token[0].endswith("{"):
                newest = token.end()
                open_braces.append((token.start(), newest))
        elif token[0] == "{":
            open_braces.append((-1, -1))
        elif token[0] == "}" and open_braces:
            start, content = open_braces.pop()
            if start == -1:
                continue
            while closed and closed[-1].start >= start:
                closed.pop()
            closed.append(_Box(start, content, token.start()))
            # A box around the newest one closes after it and takes its place.
            last_is_closed |= content == newest
    return (closed if last_is_closed else []), seen


def extract_phrase(response: str, answer_scope: AnswerScope = "final") -> Extraction:
    """What follows the last "the answer is", "Answer:" or "####" on its line, without a closing full stop."""
    if len(response) > MAX_RESPONSE_CHARS:
        return Extraction("", "too_long")
    last = None
    for match in _PHRASE.finditer(scoped(response, answer_scope)):
        last = match["answer"] or match["hash"]
    if last is None:
        return Extraction("", "no_phrase")
    answer = _SENTENCE_END.split(last.strip(), maxsplit=1)[0].strip().strip("*").strip()
    return bounded(answer[:-1].rstrip() if answer.endswith(".") else answer, "empty_phrase")


def bounded(answer: str, empty_reason: str = "empty") -> Extraction:
    """Refuse what is empty, too long, too deep, or holds a number with too many digits: no parser should see it."""
    if not answer:
        return Extraction("", empty_reason)
    if len(answer) > MAX_ANSWER_CHARS:
        return Extraction("", "too_long")
    if _DIGITS.search(answer):
        return Extraction("", "too_many_digits")
    depth = deepest = 0
    for character in answer:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    return Extraction("", "too_deep") if deepest > MAX_ANSWER_DEPTH else Extraction(answer)


def closing_brace(text: str, opening: int) -> int | None:
    r"""Position of the brace that closes the one at `opening`; `\{`, `\}` and `\\` are passed over as pairs."""
    depth, position = 0, opening
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 2
            continue
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None


def unbox(answer: str) -> str:
    """Write out every box in `answer` in its place."""
    for _ in range(MAX_ANSWER_DEPTH):
        match = _BOX.search(answer)
        if match is None or match.end() >= len(answer) or answer[match.end()] != "{":
            return answer
        end = closing_brace(answer, match.end())
        if end is None:
            return answer
        answer = answer[: match.start()] + answer[match.end() + 1 : end] + answer[end + 1 :]
    return answer
