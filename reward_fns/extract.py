"""Find the answer in a response: the last closed `\boxed{}` that a reader would take for it."""

import re
from dataclasses import dataclass
from typing import Literal

from reward_fns.errors import OptionError
from reward_fns.text import after_thinking, clean, closing_brace, visible

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
_JOINS = re.compile(
    r"(?=.*(?:,|and|or))[\s$]*(?:\\[()\],;]|\\quad)?\s*[,;]?\s*(?:\\[()\[,;]|\\quad)?[\s$]*"
    r"(?:\\text\s*\{\s*,?\s*(?:and|or)?\s*\}|and|or)?[\s$]*(?:\\[(\[,;]|\\quad)?[\s$]*(?:[A-Za-z]\s*=\s*)?",
    re.DOTALL,
)
"""What stands between two boxes of one answer."""
_BETWEEN = r"(?:[\s$.,;:/|*&()\[\]_-]|\\[()\[\],;: ]|\\\\|\\q?quad)*"
_OR_WORDS = r"(?:and/or|or|and|oder|und|ou|et|o|y|e|или|и|或者|或|和|または|と|또는|와|vs\.?)"
_ALTERNATIVE = re.compile(
    rf"{_BETWEEN}(?:(?:\\(?:text|mathrm)\s*\{{)?\s*{_OR_WORDS}(?:\s+(?:maybe|perhaps|possibly|also|else|rather))?\s*\}}?)?"
    rf"{_BETWEEN}(?:[A-Za-z]\s*=\s*)?",
    re.IGNORECASE,
)
"""What stands between boxes that hedge: side by side, one per line, or joined by a word for "or"."""
_DENIED_BEFORE = re.compile(
    r"\b(?:not|never|cannot be|can't be|isn't|rather than|instead of|neither|nor)\s*(?:equal to\s*)?[\s$(*:]*$",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(
    r"[\s$)*.,;:]{0,6}(?:\\[)\]])?\s*(?:isn't|is not|cannot be|can't be|(?:is|was|would be|seems|looks)\s+"
    r"(?:\w+\s+){0,2}?(?:wrong|incorrect|false|impossible|mistaken|invalid|not\b))",
    re.IGNORECASE,
)
_FORMAT_BEFORE = re.compile(
    r"\b(?:format|form|like|such as|e\.g\.?|example|template|instructions?|inside|within|in|as)\b[^.\n]{0,40}"
    r"[\"'`]\s*$",
    re.IGNORECASE,
)
# A sign, a factor or a function that stands before the box in its formula. A dash with spaces is prose or a bullet.
_PART_BEFORE = re.compile(
    r"(?:[A-Za-z0-9)}\]]\s*(?:[+/^]|\*(?!\*))|[\w)}\]]\s*_|(?:[=($\[{,+*/^]|\\[(\[]|\\left|^)\s*-(?!\s)|[A-Za-z0-9)}]-"
    r"|[=($]\s*-\s|\\(?:cdot|times|div|pm|mp|sqrt|ln|log|sin|cos|tan|frac\s*(?:\{[^{}]*\}|\w)?)\s*|(?<![\w.])\d+)\s*\$?$"
)
_PART_AFTER = re.compile(
    r"\$?\s*(?:\^(?!\s*\{?\s*\\circ)|[+/](?=\s*[\w\\(])|\\(?:cdot|times|div|pm|mp)(?![A-Za-z])"
    r"|-(?=\s*(?:\d|\\[a-z]|[A-Za-z]\b(?!\s+[a-z]))))"
)
_GROUP_OF = re.compile(
    r"(?:\\[dtc]?frac\s*(?:\{[^{}]*\}|\w)?|\\sqrt\s*(?:\[[^\[\]]*\])?|[\^_]|\\[dt]?binom\s*(?:\{[^{}]*\})?)\s*$"
)
_CONTEXT = 60
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
    return visible(after_thinking(text) if answer_scope == "final" else text)


def extract_boxed(response: str, answer_scope: AnswerScope = "final") -> Extraction:
    r"""The content of the last `\boxed{}` or `\fbox{}`, which must be closed.

    Boxes that a comma, "and" or "or" joins, and nothing else, are one answer: the list of their contents. Others that
    differ and stand side by side, one per line, or joined by "OR", ";", "/" or a word for "or", are none. Nested braces
    and escaped braces are honoured. A box inside a box is written out in its place. A last box without braces
    (`\boxed 5`, of which TeX would box one token) or never closed is no answer, whatever stood in an earlier one, and
    neither is one that is a part of a formula (`-\boxed{5}`). Empty boxes, quoted ones that show the form of an answer,
    and those that are denied ("`\boxed{5}` is wrong") are passed over.
    """
    if len(response) > MAX_RESPONSE_CHARS:
        return Extraction("", "too_long")
    text = scoped(response, answer_scope)
    only_thinking = not text.strip() and bool(scoped(response, "anywhere").strip())
    boxes, seen = _closed_boxes(text)
    if not boxes:
        return Extraction("", "unclosed_box" if seen else "only_thinking" if only_thinking else "no_box")
    reason = "empty_box"
    while boxes and (problem := _passed_over(text, boxes[-1])):
        reason = problem
        last = boxes.pop()
        if problem == "empty_box" and boxes and _is_between(text, boxes[-1], last, _ALTERNATIVE):
            return Extraction("", "empty_box")
    if not boxes:
        return Extraction("", reason)
    joined = [boxes[-1]]
    while len(joined) < min(len(boxes), MAX_JOINED_BOXES):
        before = boxes[-len(joined) - 1]
        if not _is_between(text, before, joined[0], _JOINS):
            break
        joined.insert(0, before)
    if _is_part(text, joined[0], joined[-1]):
        return Extraction("", "part_of_formula")
    contents = [unbox(text[box.content : box.end]).strip() for box in joined]
    if len(boxes) > len(joined):
        before = boxes[-len(joined) - 1]
        is_other = unbox(text[before.content : before.end]).strip() not in ("", *contents[:1])
        if is_other and _is_between(text, before, joined[0], _ALTERNATIVE):
            return Extraction("", "several_boxes")
    return bounded(", ".join(contents) if all(contents) else contents[-1], "empty_box")


def _is_between(text: str, first: "_Box", second: "_Box", pattern: re.Pattern) -> bool:
    """Whether what stands between two boxes is of this kind."""
    gap = text[first.end + 1 : second.start]
    return len(gap) <= MAX_GAP and pattern.fullmatch(gap) is not None


def _passed_over(text: str, box: "_Box") -> str | None:
    """Why a reader would not take a box for the answer, though it stands there."""
    before, after = text[max(0, box.start - _CONTEXT) : box.start], text[box.end + 1 : box.end + 1 + _CONTEXT]
    if not text[box.content : box.end].strip():
        return "empty_box"
    if _FORMAT_BEFORE.search(before) and after.lstrip()[:1] in ("'", '"', "`"):
        return "quoted_box"
    if _DENIED_BEFORE.search(before) or _DENIED_AFTER.match(after):
        return "denied_box"
    return None


def _is_part(text: str, first: "_Box", last: "_Box") -> bool:
    """Whether a box is only a part of a formula around it."""
    before, after = text[max(0, first.start - _CONTEXT) : first.start], text[last.end + 1 : last.end + 1 + _CONTEXT]
    if _PART_BEFORE.search(before) or _PART_AFTER.match(after):
        return True
    depth = 0
    for place in range(len(before) - 1, -1, -1):
        depth += (before[place] == "}") - (before[place] == "{")
        if depth < 0:
            return _GROUP_OF.search(before[:place]) is not None
    return False


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


_PHRASE = re.compile(
    r"\b(?:final\s+)?answer\s*(?:\*\*|__)?\s*(?:is\b|:|=)\s*:?\s*(?:\*\*|__)?\s*(?=(?P<answer>[^\n]{1,1000}))"
    r"|####\s*(?P<hash>[^\n]{1,1000})",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\.\s|,?\s(?:because|since|so|which|as|for|when|where|if|by|after)\s")
_FILLER = re.compile(
    r"(?:(?:the|a|an|simply|just|indeed|therefore|thus|then|now|also|exactly|approximately|about|roughly|equal to"
    r"|equals?|number|value|integer|final|=)\s+)+(?=\S)",
    re.IGNORECASE,
)
_VALUE = re.compile(r"[-+($\[{|\\.]|\d")
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?:[ '-]+[A-Za-z]+)*")
_ANSWER_WORDS = frozenset(
    "yes no true false even odd both neither never always increasing decreasing divergent convergent diverges "
    "converges undefined infinite infinity zero one two three four five six seven eight nine ten dne impossible "
    "north south east west".split()
)
"""Words that a question can have for an answer."""
_FUNCTIONS = frozenset("sin cos tan sec csc cot log ln exp sqrt pi max min gcd lcm and or mod".split())
_PLACEHOLDER = re.compile(
    r"none|null|nil|nan|n/?a|tbd|unknown|not (?:sure|available|known)|unsure|i (?:do not|don't|cannot|can't) \w+"
    r"|(?:your |the |my |final |an? )*(?:answer|result|value|number|expression|solution)(?: here)?"
    r"|\\[lc]?dots|\\(?:square|Box|star|ast|cdot|bullet|blacksquare)|[?_.*…-]+|\\underline\s*\{.*\}"
    r"|[<\[{]\s*[a-z ]+\s*[>\]}]",
    re.IGNORECASE,
)
MAX_UNIT_WORDS = 4


def is_placeholder(answer: str) -> bool:
    r"""Whether an answer only holds a place: None, N/A, "I don't know", `\ldots`, `\square`, "your answer"."""
    plain = re.sub(r"\\(?:text\w*|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", answer).strip("$ \n")
    return _PLACEHOLDER.fullmatch(plain) is not None or _PLACEHOLDER.fullmatch(plain.rstrip(".")) is not None


def states_value(answer: str) -> bool:
    """Whether what follows "the answer is" states an answer, and is no prose about it ("correct", "given by ...")."""
    runs = [run for run in _WORDS.findall(answer) if run.lower() not in _FUNCTIONS]
    if not runs:
        return True
    if _VALUE.match(answer):
        return sum(len(run.split()) for run in runs) <= MAX_UNIT_WORDS
    words = answer.split()
    is_name = len(words) <= 3 and all(word[:1].isupper() for word in words)
    return is_name or answer.strip("()$ *").lower() in _ANSWER_WORDS


def extract_phrase(response: str, answer_scope: AnswerScope = "final") -> Extraction:
    """What follows the last "the answer is", "Answer:" or "####" that states an answer, without a closing full stop."""
    if len(response) > MAX_RESPONSE_CHARS:
        return Extraction("", "too_long")
    answer, seen = "", False
    for match in _PHRASE.finditer(scoped(response, answer_scope)):
        seen = True
        text = (
            _SENTENCE_END.split((match["answer"] or match["hash"]).strip(), maxsplit=1)[0].strip().strip("*_").strip()
        )
        text = _FILLER.sub("", text.removesuffix(".").rstrip(), count=1)
        if text and states_value(text):
            answer = text
    return bounded(answer, "empty_phrase") if seen else Extraction("", "no_phrase")
