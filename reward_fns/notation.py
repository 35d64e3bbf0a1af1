"""Answers in a notation of their own: times of day, dates, ratios, numbers to a base, assignments of values to names.

As formulas they would be divisions, differences and products: 3:30 would be 1:10, and 3/4/2020 would be 6/8/2020.
"""

import re
from dataclasses import dataclass

from reward_fns.answer import MARK, squeeze
from reward_fns.shapes import split_top

_TIME = re.compile(
    r"(?P<hour>\d{1,2})(?:\s*:\s*(?P<minute>[0-5]\d))?(?:\s*:\s*(?P<second>[0-5]\d))?\s*(?P<half>[ap]\.?\s*m\.?)?",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{1,2}/\d{1,2}/\d{2,4}|\d{4}/\d{1,2}/\d{1,2}|\d{4}-\d{1,2}-\d{1,2}|\d{1,2}-\d{1,2}-\d{4}")
_BASE = re.compile(
    r"(?P<open>\()?\s*(?P<digits>-?[0-9A-F]+)\s*(?(open)\))\s*_\s*"
    r"(?:\{\s*\(?\s*(?P<braced>[^{}()]+?)\s*\)?\s*\}|(?P<bare>\d+))"
)
_NUMBER_WORDS = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
_BASE_NAMES = {word: number for number, word in enumerate(_NUMBER_WORDS, 2)}
_TO = re.compile(rf"\s*{MARK}\s*to\s*{MARK}\s*|(?<=\d)\s+to\s+(?=\d)")
_NAME = re.compile(r"\\?[A-Za-z]+(?:\s*_\s*(?:\{[^{}]*\}|\w))?")


_LETTER = r"(?<![\\A-Za-z])(\\?[A-Za-z]+)(?![A-Za-z])"
_INDEX = re.compile(rf"\\(?:sum|prod)\s*_\s*\{{?\s*{_LETTER}\s*(?:=|\\in)")
_DIFFERENTIAL = re.compile(r"\\int\s*_(?:(?!\\int).)*?(?<![\\A-Za-z])d\s*([A-Za-z])(?![A-Za-z])")
_MEMBER = re.compile(rf"{_LETTER}\s*\\in\s*\\mathbb\s*\{{?\s*[NZQRC]")


def bound_names(text: str) -> list[str]:
    r"""The letters that a text binds, in order: index of a sum, variable of a definite integral, `k\in\mathbb{Z}`.

    A letter that is also used before its sum or integral is free there, and is left out.
    """
    bound = []
    for pattern, whole in ((_INDEX, False), (_DIFFERENTIAL, False), (_MEMBER, True)):
        for match in pattern.finditer(text):
            name = match[1]
            before = "" if whole else re.sub(r"\\[A-Za-z]+", " ", text[: match.start()])
            if len(name) == 1 and name not in before and name not in bound:
                bound.append(name)
    return bound


def read_time(text: str) -> tuple[int, int, int, str] | None:
    """A time of day: hour, minute, second, and a or p or ""; None when the text is none."""
    match = _TIME.fullmatch(text.replace(MARK, " ").strip())
    if match is None or not (match["minute"] or match["half"]):
        return None
    half = (match["half"] or "")[:1].lower()
    return int(match["hour"]), int(match["minute"] or 0), int(match["second"] or 0), half


def is_date(text: str) -> bool:
    """Whether a text is a date in figures."""
    return _DATE.fullmatch(text.replace(" ", "")) is not None


def read_ratio(text: str, beside_ratio: bool = False) -> tuple[str, ...] | None:
    """The parts of `a:b` or `a to b`, or None when the text is no ratio.

    Args:
        beside_ratio: the other answer is a ratio, so that `10:14` is one too and no time of day.
    """
    parts = split_top(_TO.sub(":", text), ":")
    return tuple(parts) if len(parts) > 1 and all(parts) and (beside_ratio or read_time(text) is None) else None


def read_base(text: str) -> tuple[str, int] | None:
    """The digits and the base of a number written to a base, or None."""
    match = _BASE.fullmatch(text.replace(MARK, " ").strip())
    if match is None:
        return None
    name = (match["braced"] or match["bare"]).strip().lower()
    base = int(name) if name.isdigit() else _BASE_NAMES.get(name)
    sign = "-" if match["digits"].startswith("-") else ""
    digits = match["digits"].removeprefix("-").lstrip("0") or "0"
    return (sign + digits, base) if base and 2 <= base <= 36 else None


@dataclass(frozen=True, slots=True)
class Assignments:
    """Values with distinct names, such as `x = 2, y = -1`, in the order in which they are written."""

    names: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def are_roots(self) -> bool:
        """Whether the names are one name with numbers, as in `x_1 = 2, x_2 = 5`: then they have no order."""
        return len({name.partition("_")[0] for name in self.names}) == 1

    @property
    def out_of_order(self) -> bool:
        """Whether the names are neighbours in the alphabet in another order, as in `y=3, x=2`: no point is meant."""
        letters = sorted(self.names)
        neighbours = all(len(name) == 1 for name in letters) and ord(letters[-1]) - ord(letters[0]) == len(letters) - 1
        return neighbours and list(self.names) != letters


def read_assignments(parts: tuple[str, ...]) -> Assignments | None:
    """The names and values of a list in which each part is `name = value`, or `(x, y) = (2, -1)`; else None."""
    names: list[str] = []
    values: list[str] = []
    for part in parts:
        sides = split_top(part, "=")
        if len(sides) != 2 or not sides[1]:
            return None
        if len(parts) == 1 and sides[0][:1] == "(" and sides[0][-1:] == ")":
            names = [squeeze(name) for name in split_top(sides[0][1:-1], ",")]
            if not (sides[1][:1] == "(" and sides[1][-1:] == ")"):
                return None
            values = split_top(sides[1][1:-1], ",")
            break
        names.append(squeeze(sides[0]))
        values.append(sides[1])
    distinct = len(set(names)) == len(names) == len(values) > 1
    if not distinct or not all(_NAME.fullmatch(name) for name in names):
        return None
    return Assignments(tuple(names), tuple(values))
