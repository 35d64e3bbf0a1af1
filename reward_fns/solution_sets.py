r"""Sets of real numbers: intervals, unions, inequalities in one variable, and what "and" and "or" make of them.

Each is brought to one form, disjoint intervals in order, so that `x < 1 or x > 3` is `(-\infty, 1) \cup (3, \infty)`
and nothing else is. Ends are compared as values of formulas (`reward_fns.evaluation`).
"""

import re
from dataclasses import dataclass
from fractions import Fraction

import mpmath

from reward_fns.answer import MARK
from reward_fns.evaluation import TooLarge, Undefined, Value, as_float, constant, evaluate, is_real, same_number_at
from reward_fns.formula import Tree, Unreadable, read_formula, symbols_in
from reward_fns.shapes import depths, shape_of, split_top

_ALL = re.compile(
    rf"\\mathbb\s*\{{?\s*R\s*\}}?|{MARK}?\s*(?:all )?real(?:s| numbers)\s*{MARK}?|{MARK}?R{MARK}", re.IGNORECASE
)
_RELATION = re.compile(r"\\(?:le|ge|ne)(?![A-Za-z])|[<>]")
_AND = re.compile(rf"\s*(?:{MARK}\s*,?\s*and\s*{MARK}|\band\b|\\wedge(?![A-Za-z]))\s*")
_OR = re.compile(rf"\s*(?:{MARK}\s*,?\s*or\s*{MARK}|\bor\b|\\vee(?![A-Za-z]))\s*")
_BUILDER = re.compile(
    r"\\\{\s*(?P<name>[A-Za-z])(?:\s*\\in\s*\\mathbb\s*\{?R\}?)?\s*(?:\\mid(?![A-Za-z])|\||:)(?P<condition>.*)\\\}"
)
_MEMBER = re.compile(r"(?P<name>[A-Za-z])\s*\\in(?![A-Za-z])(?P<set>.+)")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}
_INFINITY = mpmath.inf
_DIGITS = 60


class NoSet(ValueError):
    """The text is no set of real numbers that can be read whole."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`; a closed end belongs to it."""

    low: Value
    low_closed: bool
    high: Value
    high_closed: bool


@dataclass(frozen=True, slots=True)
class RealSet:
    """Disjoint intervals in order, and the variable they were written with ("": none)."""

    intervals: tuple[Interval, ...]
    variable: str = ""


def has_relation(text: str) -> bool:
    """Whether an order relation stands outside all brackets."""
    return any(depth == 0 and _RELATION.match(text, place) for place, depth in depths(text))


def connected(text: str) -> tuple[str, tuple[str, ...]]:
    """The parts of a condition and what connects them: "and", "or" or "" (one part, or both words)."""
    for name, pattern, other in (("or", _OR, _AND), ("and", _AND, _OR)):
        parts = pattern.split(text)
        if len(parts) > 1:
            return (name, tuple(part.strip(" ,") for part in parts)) if not other.search(text) else ("", (text,))
    return "", (text,)


def read_set(text: str) -> RealSet:
    """The set of real numbers that a normal form describes.

    Raises:
        NoSet: it describes none, or one with ends that are no constants.
    """
    with mpmath.workdps(_DIGITS):
        whole = _read(text.strip(), 0)
        return RealSet(_merged(whole.intervals), whole.variable)


def same_set(a: RealSet, b: RealSet) -> bool:
    """Whether two sets have the same members, and are written with the same variable where both name one."""
    if a.variable and b.variable and a.variable != b.variable:
        return False
    return len(a.intervals) == len(b.intervals) and all(
        (x.low_closed, x.high_closed) == (y.low_closed, y.high_closed) and _same(x.low, y.low) and _same(x.high, y.high)
        for x, y in zip(a.intervals, b.intervals, strict=True)
    )


def _read(text: str, depth: int) -> RealSet:
    if depth > 6:
        raise NoSet(text)
    if _ALL.fullmatch(text):
        return RealSet((Interval(-_INFINITY, False, _INFINITY, False),))
    if text in (r"\emptyset", r"\{\}", r"\{ \}"):
        return RealSet(())
    if match := _MEMBER.fullmatch(text):
        return RealSet(_read(match["set"].strip(), depth + 1).intervals, match["name"])
    if match := _BUILDER.fullmatch(text):
        inner = _read(match["condition"].strip(), depth + 1)
        if inner.variable not in ("", match["name"]):
            raise NoSet(text)
        return RealSet(inner.intervals)
    connector, parts = connected(text)
    if connector:
        return _combined([_read(part, depth + 1) for part in parts], connector)
    for command, word in ((r"\cup", "or"), (r"\cap", "and")):
        if len(sides := split_top(text, command)) > 1:
            return _combined([_read(side, depth + 1) for side in sides], word)
    without = split_top(text, r"\setminus")
    if len(without) == 1 and re.match(r"\\mathbb", text):
        without = split_top(text, "-")
    if len(without) == 2:
        whole, hole = (_read(part, depth + 1) for part in without)
        return _combined([whole, RealSet(_complement(hole.intervals))], "and")
    if has_relation(text):
        return _from_relation(text)
    return RealSet(_from_brackets(text))


def _combined(sets: list[RealSet], connector: str) -> RealSet:
    names = {one.variable for one in sets} - {""}
    if len(names) > 1:
        raise NoSet("two variables")
    intervals = sets[0].intervals
    for other in sets[1:]:
        if connector == "or":
            intervals = intervals + other.intervals
        else:
            intervals = tuple(c for a in intervals for b in other.intervals if (c := _overlap(a, b)) is not None)
    return RealSet(intervals, next(iter(names), ""))


def _from_brackets(text: str) -> tuple[Interval, ...]:
    shape = shape_of(text)
    if shape.kind == "set" or (shape.kind == "one" and text.startswith(r"\{")):
        ends = [_end(item) for item in shape.items]
        return tuple(Interval(end, True, end, True) for end in ends)
    if len(shape.items) != 2 or shape.kind not in ("()", "(]", "[)", "[]"):
        raise NoSet(text)
    low, high = (_end(item) for item in shape.items)
    return (Interval(low, shape.kind[0] == "[", high, shape.kind[1] == "]"),)


def _end(text: str) -> Value:
    text = text.replace(" ", "")
    if text in (r"\infty", r"+\infty", r"-\infty"):
        return -_INFINITY if text[0] == "-" else _INFINITY
    return _number(_tree(text))


def _tree(text: str) -> Tree:
    try:
        return read_formula(text)
    except Unreadable as error:
        raise NoSet(str(error)) from error


def _number(tree: Tree) -> Value:
    try:
        value, tolerance = constant(tree)
    except (TooLarge, Undefined) as error:
        raise NoSet("an end that is no constant") from error
    if not is_real(value, tolerance):
        raise NoSet("an end that is not real")
    return value.real if isinstance(value, mpmath.mpc) else value


def _from_relation(text: str) -> RealSet:
    depth_at = dict(depths(text))
    matches = [match for match in _RELATION.finditer(text) if depth_at.get(match.start(), 1) == 0]
    starts, ends = [0, *(match.end() for match in matches)], [*(match.start() for match in matches), len(text)]
    sides = [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    relations = [match[0] for match in matches]
    directions = {relation in (">", r"\ge") for relation in relations}
    if not 1 <= len(relations) <= 2 or not all(sides) or "=" in text or len(directions) > 1:
        raise NoSet(text)
    pairs = [_solved(a, relation, b) for a, relation, b in zip(sides, relations, sides[1:], strict=False)]
    return _combined(pairs, "and")


def _solved(left: str, relation: str, right: str) -> RealSet:
    """The solutions of an inequality that is linear in one variable, or of `|linear| < constant`."""
    for side, other, flipped in ((left, right, False), (right, left, True)):
        if other.replace(" ", "") in (r"\infty", r"+\infty", r"-\infty"):
            name = _only_name(_tree(side))
            towards = relation if not flipped else _FLIPPED[relation]
            if (towards == "<") != (other.replace(" ", "")[0] != "-") or towards not in "<>":
                raise NoSet("nothing is beyond infinity")
            return RealSet((Interval(-_INFINITY, False, _INFINITY, False),), name)
    a, b = _tree(left), _tree(right)
    name = _only_name(("add", a, b))
    if a[0] == "abs" or b[0] == "abs":
        if b[0] == "abs":
            a, b, relation = b, a, _FLIPPED[relation]
        return _absolute(a[1], relation, b, name)
    return RealSet(_half_line(a, relation, b, name), name)


def _only_name(tree: Tree) -> str:
    names = symbols_in(tree)
    if len(names) != 1:
        raise NoSet("not one variable")
    return next(iter(names))


def _half_line(left: Tree, relation: str, right: Tree, name: str) -> tuple[Interval, ...]:
    difference = ("add", left, ("multiply", ("number", Fraction(-1)), right))
    try:
        results = [evaluate([difference], {name: Fraction(place)}) for place in (0, 1, 2, 7)]
    except (TooLarge, Undefined) as error:
        raise NoSet("no linear inequality") from error
    values, tolerance = [values[0] for values, _ in results], max(tolerance for _, tolerance in results)
    if not all(is_real(value, tolerance) for value in values):
        raise NoSet("no real inequality")
    if not all(isinstance(value, Fraction) for value in values):
        values = [as_float(value).real for value in values]
    slope = values[1] - values[0]
    linear = all(
        same_number_at(value, values[0] + place * slope, 1000 * tolerance)
        for value, place in zip(values[2:], (2, 7), strict=True)
    )
    if not linear or same_number_at(slope, Fraction(0), tolerance):
        raise NoSet("no linear inequality")
    end = -values[0] / slope
    if relation == r"\ne":
        return (Interval(-_INFINITY, False, end, False), Interval(end, False, _INFINITY, False))
    closed = relation in (r"\le", r"\ge")
    if (relation in ("<", r"\le")) == (slope > 0):
        return (Interval(-_INFINITY, False, end, closed),)
    return (Interval(end, closed, _INFINITY, False),)


def _absolute(inner: Tree, relation: str, bound: Tree, name: str) -> RealSet:
    if symbols_in(bound) or relation == r"\ne" or not _number(bound) > 0:
        raise NoSet("an absolute value against no positive constant")
    above = RealSet(_half_line(inner, relation, bound, name), name)
    below = RealSet(_half_line(inner, _FLIPPED[relation], ("multiply", ("number", Fraction(-1)), bound), name), name)
    return _combined([above, below], "and" if relation in ("<", r"\le") else "or")


def _same(a: Value, b: Value) -> bool:
    if not (mpmath.isfinite(as_float(a)) and mpmath.isfinite(as_float(b))):
        return bool(as_float(a) == as_float(b))
    return same_number_at(a, b, mpmath.mpf(10) ** -30)


def _less(a: Value, b: Value) -> bool:
    return not _same(a, b) and bool(as_float(a) < as_float(b))


def _overlap(a: Interval, b: Interval) -> Interval | None:
    low, low_closed = (a.low, a.low_closed) if _less(b.low, a.low) else (b.low, b.low_closed)
    if _same(a.low, b.low):
        low, low_closed = a.low, a.low_closed and b.low_closed
    high, high_closed = (a.high, a.high_closed) if _less(a.high, b.high) else (b.high, b.high_closed)
    if _same(a.high, b.high):
        high, high_closed = a.high, a.high_closed and b.high_closed
    interval = Interval(low, low_closed, high, high_closed)
    return None if _is_empty(interval) else interval


def _is_empty(interval: Interval) -> bool:
    if _same(interval.low, interval.high):
        return not (interval.low_closed and interval.high_closed)
    return _less(interval.high, interval.low)


def _complement(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
    remaining = [Interval(-_INFINITY, False, _INFINITY, False)]
    for hole in intervals:
        sides = (
            Interval(-_INFINITY, False, hole.low, not hole.low_closed),
            Interval(hole.high, not hole.high_closed, _INFINITY, False),
        )
        remaining = [c for one in remaining for side in sides if (c := _overlap(one, side)) is not None]
    return tuple(remaining)


def _merged(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """In order, and those that touch or overlap joined; an interval of no members is an error and no set."""
    if any(_is_empty(interval) for interval in intervals):
        raise NoSet("an interval from high to low")
    merged: list[Interval] = []
    for one in sorted(intervals, key=lambda interval: (as_float(interval.low), not interval.low_closed)):
        last = merged[-1] if merged else None
        if (
            last is None
            or _less(last.high, one.low)
            or (_same(last.high, one.low) and not (last.high_closed or one.low_closed))
        ):
            merged.append(one)
            continue
        if _less(last.high, one.high):
            merged[-1] = Interval(last.low, last.low_closed, one.high, one.high_closed)
        elif _same(last.high, one.high):
            merged[-1] = Interval(last.low, last.low_closed, last.high, last.high_closed or one.high_closed)
    return tuple(merged)
