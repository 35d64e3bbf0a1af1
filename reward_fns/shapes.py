r"""The outer structure of an answer: a single expression, a list, a set, a bracketed tuple or interval, a union,
a matrix.

Structure is compared here and never by the algebra behind it, which takes a subset of a list for the list and `n=2,3,4`
for `n=1,2,3`. Works on `reward_fns.answer.normal_form`.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from reward_fns.answer import MARK
from reward_fns.units import split_unit

MAX_ITEMS = 64
_AND_OR = re.compile(
    rf"\s*,?\s*(?:{MARK}\s*,?\s*(?:and|or)\s*{MARK}|(?<=[\s\d)}}$])(?:and|or)(?=[\s\d(\\$]))\s*", re.IGNORECASE
)
_GROUPED = re.compile(r"(?<![\d,.])[1-9]\d{0,2}(?:,\d{3})+(?!\d)")
_MATRIX = re.compile(r"\\begin\s*\{([pbB]?matrix|smallmatrix|array)\}\s*(?:\{[lcr|]*\})?(.*)\\end\s*\{\1\}", re.DOTALL)
_ROW_END = re.compile(r"\\\\|\\cr(?![A-Za-z])")
_EMPTY = frozenset({r"\emptyset", r"\{\}", r"\{ \}"})
_MEMBER = re.compile(
    r"^(?P<name>[A-Za-z](?:_\{?\w+\}?)?|\([A-Za-z](?:\s*,\s*[A-Za-z])+\))\s*\\in(?![A-Za-z])\s*(?P<set>.+)$"
)
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])\s*")
_SIGN_FIRST = re.compile(r"(^|[=(,]\s*)\+")


@dataclass(frozen=True, slots=True)
class Shape:
    """`kind` is one, list, set, union, a bracket pair such as `(]`, or `matrix 2x2`; a list or set has no order."""

    kind: str
    items: tuple[str, ...]

    @property
    def unordered(self) -> bool:
        return self.kind in ("list", "set", "union")


@functools.lru_cache(maxsize=1024)
def shape_of(text: str) -> Shape:
    """The outer structure of a normal form. An answer of more than MAX_ITEMS parts is one opaque expression."""
    member = _MEMBER.match(text)
    if member and member["set"][:1] in "([\\]":
        text = member["set"]
    shape = _structure(text.strip())
    return shape if len(shape.items) <= MAX_ITEMS else Shape("one", (text,))


def member_name(text: str) -> str:
    r"""The name that a text says to lie in a set, as in `x \in [1,2)`; "" without one."""
    member = _MEMBER.match(text)
    return member["name"] if member else ""


def _structure(text: str) -> Shape:
    if text in _EMPTY:
        return Shape("set", ())
    if matrix := _MATRIX.fullmatch(text):
        rows = [[cell.strip() for cell in row.split("&")] for row in _ROW_END.split(matrix[2]) if row.strip()]
        if "\\begin" not in matrix[2] and rows and len({len(row) for row in rows}) == 1:
            return Shape(f"matrix {len(rows)}x{len(rows[0])}", tuple(cell for row in rows for cell in row))
        return Shape("one", (text,))
    if text.startswith("\\{") and text.endswith("\\}") and _closes_at_end(text):
        inside = text[2:-2].strip()
        if not any(token in inside for token in ("|", "\\mid", ":")):
            parts = split_top(_AND_OR.sub(", ", inside), ",;")
            return Shape("set", tuple(item for part in parts if part for item in expand_plus_minus(part)))
        return Shape("one", (text,))
    if len(text) > 2 and text[0] in "([]" and text[-1] in ")][" and _closes_at_end(text):
        parts = split_top(text[1:-1], ",;")
        if len(parts) > 1:
            if text[0] + text[-1] == "()" and len(_PLUS_MINUS.findall(text)) == 1:
                return Shape("list", tuple(expand_plus_minus(text)))
            return Shape(_french(text[0], True) + _french(text[-1], False), tuple(parts))
        if text[0] == "(" and text[-1] == ")":
            return _structure(parts[0]) if parts[0] else Shape("one", (text,))
    listed = _AND_OR.sub(", ", text)
    if split_unit(listed).number() is None:
        parts = split_top(listed, ",;", keep_grouped=", " in listed)
        if len(parts) > 1:
            return Shape("list", tuple(item for part in parts if part for item in expand_plus_minus(part)))
    unions = split_top(text, "\\cup")
    if len(unions) > 1:
        return Shape("union", tuple(unions))
    expanded = expand_plus_minus(text)
    return Shape("list" if len(expanded) > 1 else "one", tuple(expanded))


def _french(bracket: str, opening: bool) -> str:
    """`]1, 2[` is the open interval `(1, 2)`."""
    if opening:
        return "(" if bracket == "]" else bracket
    return ")" if bracket == "[" else bracket


def _closes_at_end(text: str) -> bool:
    """Whether the bracket that opens `text` is closed by its last character and not before."""
    opened = 2 if text.startswith("\\{") else 1
    end = len(text) - (2 if text.endswith("\\}") else 1)
    within = [depth for _, depth in depths(text[opened:end])]
    return min(within, default=0) >= 0 and within[-1:] in ([], [0])


def depths(text: str) -> Iterator[tuple[int, int]]:
    """Each position with the bracket depth after it; a command such as `\\{` counts as one character."""
    depth, position = 0, 0
    while position < len(text):
        width = 2 if text[position] == "\\" else 1
        token = text[position : position + width]
        if token in ("(", "[", "{", "\\{") or text.startswith("\\begin", position):
            depth += 1
        elif token in (")", "]", "}", "\\}") or text.startswith("\\end", position):
            depth -= 1
        yield position, depth
        position += width


def split_top(text: str, separators: str, keep_grouped: bool = False) -> list[str]:
    """Split where no bracket is open: at any character of `separators`, or at it as a whole if it is a command.

    With `keep_grouped`, a comma inside `1,234` does not split.
    """
    command = separators.startswith("\\")
    grouped = {i for m in _GROUPED.finditer(text) for i in range(*m.span())} if keep_grouped else ()
    parts, start, marked = [], 0, False
    for position, depth in depths(text):
        if text[position] == MARK:
            marked = not marked
        if depth > 0 or marked or position < start or position in grouped:
            continue
        if command:
            if text.startswith(separators, position) and not text[position + len(separators) :][:1].isalpha():
                parts.append(text[start:position].strip())
                start = position + len(separators)
        elif text[position] in separators:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return parts


def expand_plus_minus(text: str) -> list[str]:
    r"""`a \pm b` as its two values; all the signs in one expression belong together."""
    if not _PLUS_MINUS.search(text):
        return [text]
    upper = _PLUS_MINUS.sub(lambda m: "+" if m[1] == "pm" else "-", text)
    lower = _PLUS_MINUS.sub(lambda m: "-" if m[1] == "pm" else "+", text)
    return [_SIGN_FIRST.sub(r"\1", value) for value in (upper, lower)]
