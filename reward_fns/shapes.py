"""The outer structure of an answer: a single expression, a list, a set, a bracketed tuple or interval, a union,
a matrix.

Structure is compared here and never by the algebra behind it, which takes a subset of a list for the list and `n=2,3,4`
for `n=1,2,3`. Works on `reward_fns.answer.normal_form`.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from reward_fns.answer import MARK, squeeze
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


# Equations and inequalities: what merely names the value that was asked for, and what says more. `x = 42` names 42, `2x
# = 42` is an equation, `x = 41 = 42` a chain. Works on `reward_fns.answer.normal_form`.
_RELATION = re.compile(
    r"(?<![\\])[<>=]|\\(?:le|ge|ne|lt|gt|approx|equiv|sim|in|subset|cong|mid|Rightarrow|implies|iff|to)(?![A-Za-z])"
)
ORDER = re.compile(r"(?<![\\])[<>]|\\(?:le|ge|ne)(?![A-Za-z])")
_EQUALS = re.compile(r"(?<![<>!:\\])=(?!=)|\\(?:approx|equiv)(?![A-Za-z])|==")
_SUBSCRIPT = re.compile(r"_\s*(?:\{[^{}]*\}|\\?[A-Za-z]+|\d)")
_PRIME = re.compile(r"'+|\^\s*\{?\s*\\prime\s*\}?|\^\s*\{?\s*-1\s*\}?(?=\s*\()")
_DENIAL = re.compile(r"\b(?:not|no|never|false|wrong|except|cannot|isn't)\b", re.IGNORECASE)
_NAME_COMMANDS = re.compile(
    r"\\(?:angle|measuredangle|triangle|overline|overrightarrow|vec|hat|bar|tilde|widehat|mathcal|mathbb|max|min|log|ln|sin|cos|"
    r"tan|cot|sec|csc|det|dim|gcd|lcm|deg|arg|Re|Im|Pr|alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|"
    r"lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell)(?![A-Za-z])"
)
_DERIVATIVE = re.compile(r"\\frac\s*\{\s*d\s*\^?2?\s*[A-Za-z]?\s*\}\s*\{\s*d\s*[A-Za-z]\s*(?:\^2)?\s*\}")
QUOTIENT = re.compile(
    r"\\frac\{\s*[A-Za-z]{1,2}\s*\}\{\s*[A-Za-z]{1,2}\s*\}|[A-Za-z]{1,2}\s*[:/]\s*[A-Za-z]{1,2}(?:\s*:\s*[A-Za-z]{1,2})*"
)
_LIMIT = re.compile(r"\\lim(?:\s*_\s*\{[^{}]*\})?")
_ARGUMENTS = re.compile(r"(?<=[A-Za-z])\s*\([^()]*\)|(?<=\x02)\s*\([^()]*\)")
_TUPLE_OF_NAMES = re.compile(r"\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)")


def is_chain(item: str) -> bool:
    """`x=41=42`: more than one equality sign outside subscripts and arguments. Which link counts nobody can say."""
    return len(_EQUALS.findall(_ARGUMENTS.sub("", _SUBSCRIPT.sub("", item)))) > 1


def value_side(text: str) -> str | None:
    """`42` of `x = 42`: the right side, where the left side merely names what was asked for; else None."""
    parts = split_top(text, "=")
    if len(parts) != 2 or not all(parts) or text[text.index("=") - 1] in "<>!:\\":
        return None
    return parts[1] if is_name(parts[0]) else None


def is_name(side: str) -> bool:
    """A name, a function of something, or a sum of names such as `m + n`; a digit makes it an equation to be solved."""
    side = side.strip()
    if _DENIAL.search(side.replace(MARK, " ")):
        return False
    if _TUPLE_OF_NAMES.fullmatch(side) or QUOTIENT.fullmatch(side):
        return True
    plain = re.sub(rf"{MARK}[^{MARK}]*{MARK}", " w\x02", side)
    plain = _DERIVATIVE.sub(" w ", _PRIME.sub("", _SUBSCRIPT.sub("", plain)))
    plain = _NAME_COMMANDS.sub(" w", _LIMIT.sub(" ", plain))
    plain = re.sub(r"[{}|\x02]", " ", _ARGUMENTS.sub("", plain))
    return re.fullmatch(r"\s*[A-Za-z][A-Za-z\s+\-]{0,60}", plain) is not None


def is_related(text: str) -> bool:
    """Whether a sign of equality, order or the like stands outside all brackets."""
    return any(depth == 0 and _RELATION.match(text, place) for place, depth in depths(text))


def shared_name(items: tuple[str, ...]) -> str:
    """The name of which values are listed, as in `x=2, 5` and `x=2, x=5`: roots have no order and are no point."""
    sides = [split_top(item, "=") for item in items]
    names = {squeeze(side[0]) for side in sides if len(side) == 2}
    if len(names) != 1 or any(len(side) > 2 for side in sides) or value_side(items[0]) is None:
        return ""
    return names.pop()


def without_shared_name(items: tuple[str, ...]) -> tuple[str, ...]:
    """The values alone."""
    return tuple(split_top(item, "=")[-1] for item in items) if shared_name(items) else items


def as_ratio(side: str) -> str:
    r"""`\frac{a}{b}` and `a/b` as `a:b`."""
    match = re.fullmatch(r"\\frac\{([^{}]*)\}\{([^{}]*)\}|([^:/]+)[:/]([^:/]+)", side.strip())
    return side if match is None else f"{match[1] or match[3]}:{match[2] or match[4]}"
