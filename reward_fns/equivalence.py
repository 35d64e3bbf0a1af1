r"""Whether two answer texts are the same answer, by the strict rule for training.

Text, units, plain numbers and structure are decided here, exactly and in microseconds. What is left, formulas and
sets of numbers, goes to an `Algebra`: in a worker that is `reward_fns.algebra.decide`; in the caller's process it is
`refuse_algebra`, so that both run one and the same rule and the short cut cannot disagree.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reward_fns.answer import MARK, is_word, letter_of, normal_form, squeeze, words_in
from reward_fns.notation import bound_names, is_date, read_assignments, read_base, read_ratio, read_time
from reward_fns.numerals import Numeral, read_number, reads_as_decimal_comma, same_number
from reward_fns.shapes import (
    ORDER,
    QUOTIENT,
    Shape,
    as_ratio,
    depths,
    is_chain,
    is_name,
    is_related,
    member_name,
    shape_of,
    shared_name,
    split_top,
    value_side,
    without_shared_name,
)
from reward_fns.units import Quantity, match_units, same_unit, split_unit

Question = str
"""What algebra is asked of two texts: "equal" expressions, one "relation", one "set", or whether a value "rounds" to a
decimal."""
Algebra = Callable[[Question, str, str], bool]

_ARGUMENT = re.compile(r"(?<=^[a-zA-Z])\([a-z]\)$")
_FUNCTION_OF = re.compile(r"([A-Za-z](?:_\{?\w+\}?)?|\\[A-Za-z]+)\(([a-z])\)")
_TRUTH = {"yes": "true", "no": "false"}
_SETS = re.compile(
    r"\\(?:cup|cap|setminus|mathbb)(?![A-Za-z])|\\\{.*(?:\\mid(?![A-Za-z])|\||:).*\\\}|real numbers|\\in(?![A-Za-z])"
)
_BUILDER = re.compile(r"\\mid(?![A-Za-z])|\|")
_VARIABLE = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_OR = re.compile(rf"{MARK}\s*,?\s*or\s*{MARK}|\bor\b|\\vee(?![A-Za-z])")
_NOTATION = re.compile(r"[\d)]\s*(?:_|')")
"""A number to a base, or with a prime."""
_SHORT_WORDS = frozenset("yes no odd even true dne none east west up down left both all any zero one two ten".split())
_MATH_WORD = re.compile(
    rf"{MARK}\s*(?:degree|[a-z]*(?:sin|cos|tan|cot|sec|csc|log|ln|exp|gcd|lcm)h?|[A-Za-z])\s*{MARK}"
)
_DIFFERENTIAL = re.compile(rf"{MARK}\s*(d[A-Za-z])\s*{MARK}")
_APPROX = re.compile(r"\\approx(?![A-Za-z])")


class NeedsAlgebra(Exception):
    """The two answers can only be told apart by algebra."""


def refuse_algebra(question: Question, gold: str, pred: str) -> bool:
    """Stand in for algebra where none may run."""
    raise NeedsAlgebra


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the answers are the same, and why not."""

    same: bool
    reason: str = ""


def compare(gold: str, pred: str, algebra: Algebra) -> Verdict:
    """Whether `pred` is the answer `gold`, both as written inside a box.

    Raises:
        NeedsAlgebra: from `refuse_algebra` alone.
    """
    gold, pred = normal_form(gold), normal_form(pred)
    if not pred:
        return Verdict(False, "empty_box")
    if squeeze(gold) == squeeze(pred):
        return Verdict(True)
    if any(is_chain(item) for item in shape_of(_without_rounding(pred)[0]).items):
        return Verdict(False, "equality_chain")
    gold, pred = _with_bound_names_alike(gold, pred)
    return Verdict(True) if _Comparison(algebra).same(gold, pred) else Verdict(False, "wrong")


def _with_bound_names_alike(gold: str, pred: str) -> tuple[str, str]:
    """Both texts with the names that they bind renamed alike, if each binds as many."""
    names = bound_names(gold), bound_names(pred)
    if names[0] == names[1] or len(names[0]) != len(names[1]):
        return gold, pred
    gold, pred = (_DIFFERENTIAL.sub(r"\1", text) for text in (gold, pred))
    fresh = [letter for letter in "uvwpqrzjhlmn" if letter not in gold + pred]
    for old, other, new in zip(*names, fresh, strict=False):
        gold, pred = _with_letter(gold, old, new) or gold, _with_letter(pred, other, new) or pred
    return gold, pred


def _without_rounding(text: str) -> tuple[str, str]:
    r"""`\sqrt3 \approx 1.732` as its exact value and the decimal it is said to round to ("" where none is written)."""
    parts = split_top(text, r"\approx")
    if len(parts) == 2 and parts[0]:
        exact, numeral = read_number(parts[0]), read_number(parts[1])
        rounded = numeral is not None and numeral.decimals is not None
        if rounded and (exact is None or (exact.decimals is None and exact.value.denominator > 1)):
            return parts[0], parts[1]
    return text, ""


class _Comparison:
    """The rule, with the algebra that it asks."""

    def __init__(self, algebra: Algebra):
        self._algebra = algebra

    def same(self, gold: str, pred: str) -> bool:
        """Whether two normal forms are one answer."""
        gold, gold_rounded = _without_rounding(gold)
        pred, pred_rounded = _without_rounding(pred)
        if pred_rounded:
            value = value_side(pred) or pred
            if not self._algebra("rounds", value, pred_rounded):
                return False
        return self._same(gold, pred) or bool(gold_rounded and not pred_rounded and self._same(gold_rounded, pred))

    def _same(self, gold: str, pred: str) -> bool:
        if squeeze(gold) == squeeze(pred):
            return True
        members = member_name(gold), member_name(pred)
        if all(members) and squeeze(members[0]) != squeeze(members[1]):
            return False
        gold_shape, pred_shape = shape_of(gold), shape_of(pred)
        if _is_condition(gold) or _is_condition(pred):
            return self._same_condition(gold, gold_shape, pred, pred_shape)
        ordered = self._assigned(gold_shape, pred, pred_shape)
        if ordered is not None:
            return ordered
        if len(gold_shape.items) == 1 == len(pred_shape.items) and gold_shape.kind in ("one", "list", "set"):
            if pred_shape.kind in ("one", "list", "set"):
                return self._same_expression(gold_shape.items[0], pred_shape.items[0])
        if gold_shape.kind == "one":
            comma = _comma_reading(gold, pred)
            if comma is not None:
                return comma
            value = value_side(gold)
            if value is None:
                return pred_shape.kind == "()" and self._same_vector(gold, pred_shape)
            return self._same(value, pred)
        if pred_shape.kind == "one":
            parts = split_top(pred, ",;")
            if gold_shape.kind == "list" and len(parts) == len(gold_shape.items) > 1:
                return self._matching(gold_shape.items, parts)
            value = value_side(pred_shape.items[0])
            if value is not None:
                return self._same(gold, value)
            return gold_shape.kind == "()" and self._same_vector(pred, gold_shape)
        return self._same_structure(gold_shape, pred, pred_shape)

    def _same_vector(self, total: str, row: Shape) -> bool:
        """Whether a sum of unit vectors is a row of components."""
        if r"\vec{" not in total or not 2 <= len(row.items) <= 3:
            return False
        parts = (rf"({item})\vec{{{name}}}" for item, name in zip(row.items, "ijk", strict=False))
        return self._algebra("equal", total, "+".join(parts))

    def _same_structure(self, gold: Shape, pred_text: str, pred: Shape) -> bool:
        gold_items, pred_items = gold.items, pred.items
        if {gold.kind, pred.kind} == {"()", f"matrix {len(gold_items)}x1"}:
            # A column vector is the tuple of its components.
            return len(gold_items) == len(pred_items) and all(map(self._same_member, gold_items, pred_items))
        if gold.unordered and pred.unordered:
            if (gold.kind == "union") != (pred.kind == "union"):
                return False
            names = shared_name(gold_items), shared_name(pred_items)
            if all(names) and not _is_one_name(*names):
                return False
            gold_items, pred_items = without_shared_name(gold_items), without_shared_name(pred_items)
            if "set" in (gold.kind, pred.kind):
                gold_items, pred_items = self._distinct(gold_items), self._distinct(pred_items)
            return len(gold_items) == len(pred_items) and self._matching(gold_items, pred_items)
        if len(gold_items) != len(pred_items):
            return False
        brackets = {gold.kind, pred.kind}
        if gold.kind == pred.kind or (brackets == {"list", "()"} and not _OR.search(pred_text)):
            if brackets == {"list", "()"} and (shared_name(gold_items) or shared_name(pred_items)):
                return False
            return all(self._same_member(a, b) for a, b in zip(gold_items, pred_items, strict=True))
        return False

    def _same_member(self, gold: str, pred: str) -> bool:
        r"""Whether two parts of a structure are the same: `3` may stand for `\{3\}` as an answer, but not in one."""
        return (shape_of(gold).kind == "set") == (shape_of(pred).kind == "set") and self._same(gold, pred)

    def _assigned(self, gold: Shape, pred_text: str, pred: Shape) -> bool | None:
        """The verdict where a side assigns values to distinct names; None where neither does."""
        expected = read_assignments(gold.items if gold.kind in ("list", "one") else ())
        answered = read_assignments(pred.items if pred.kind in ("list", "one") else ())
        if expected is None and answered is None:
            return None
        if any(side.out_of_order for side in (expected, answered) if side) and not (expected and answered):
            return False
        are_roots = all(side.are_roots for side in (expected, answered) if side)
        if expected and answered:
            if set(expected.names) == set(answered.names):
                value_of = dict(zip(answered.names, answered.values, strict=True))
                named = zip(expected.names, expected.values, strict=True)
                return all(self._same(value, value_of[name]) for name, value in named)
            if not are_roots:
                return False
        values = expected.values if expected else gold.items
        given_values = answered.values if answered else pred.items
        if expected is None and not are_roots and shared_name(gold.items):
            return False
        if len(values) != len(given_values) or (expected is None and gold.kind not in ("list", "set", "()")):
            return None
        if answered is None and pred.kind not in ("list", "()"):
            return False
        if are_roots:
            return self._matching(values, given_values)
        if _OR.search(pred_text) or (answered is None and shared_name(given_values)):
            return False
        return all(self._same(a, b) for a, b in zip(values, given_values, strict=True))

    def _same_condition(self, gold: str, gold_shape: Shape, pred: str, pred_shape: Shape) -> bool:
        """Sets of numbers and inequalities."""
        if gold_shape.kind == pred_shape.kind and gold_shape.kind in ("()", "[)", "(]", "[]"):
            return len(gold_shape.items) == len(pred_shape.items) and all(
                self._same(a, b) for a, b in zip(gold_shape.items, pred_shape.items, strict=True)
            )
        if self._algebra("set", gold, pred):
            return True
        if is_related(gold) and is_related(pred) and len(split_top(gold, ",;")) == len(split_top(pred, ",;")) == 1:
            return self._algebra("relation", gold, pred)
        if gold_shape.kind == pred_shape.kind == "union" or gold_shape.kind == pred_shape.kind == "set":
            return len(gold_shape.items) == len(pred_shape.items) and self._matching(gold_shape.items, pred_shape.items)
        return False

    def _distinct(self, items: tuple[str, ...]) -> tuple[str, ...]:
        """A set's members, each once."""
        distinct: list[str] = []
        for item in items:
            if not any(self._same_member(other, item) for other in distinct):
                distinct.append(item)
        return tuple(distinct)

    def _matching(self, gold: Sequence[str], pred: Sequence[str]) -> bool:
        """Whether the parts can be paired off, whatever their order."""
        unmatched = list(pred)
        hard = []
        for item in gold:
            match = next((other for other in unmatched if squeeze(other) == squeeze(item)), None)
            if match is None:
                hard.append(item)
            else:
                unmatched.remove(match)
        for item in hard:
            match = next((other for other in unmatched if self._same_member(item, other)), None)
            if match is None:
                return False
            unmatched.remove(match)
        return not unmatched

    def _same_expression(self, gold: str, pred: str) -> bool:
        if squeeze(gold) == squeeze(pred):
            return True
        gold_related, pred_related = is_related(gold), is_related(pred)
        if pred_related and not gold_related:
            return self._states(gold, pred)
        if gold_related and not pred_related:
            value = value_side(gold)
            return value is not None and self._same(value, pred)
        if gold_related:
            gold_sides, pred_sides = split_top(gold, "="), split_top(pred, "=")
            gold_value, pred_value = value_side(gold), value_side(pred)
            if gold_value is not None and pred_value is not None:
                names = squeeze(gold_sides[0]), squeeze(pred_sides[0])
                if _is_one_name(*names):
                    return self._same(gold_value, pred_value)
                if (argument := _renamed_argument(*names)) is not None:
                    renamed = _with_letter(pred_value, *argument)
                    return renamed is not None and self._same(gold_value, renamed)
                ratio, other = read_ratio(gold_sides[0]), QUOTIENT.fullmatch(pred_sides[0])
                if ratio or other:
                    return squeeze(as_ratio(gold_sides[0])) == squeeze(as_ratio(pred_sides[0])) and self._same(
                        as_ratio(gold_value), as_ratio(pred_value)
                    )
            return self._algebra("relation", gold, pred)
        return self._same_quantity(gold, pred)

    def _states(self, gold: str, pred: str) -> bool:
        """A relation for a value: `x = 42` names it, `3 + 4 = 7` is true, `41 = 42` is neither."""
        value = value_side(pred)
        if value is not None:
            return self._same(gold, value)
        parts = split_top(pred, "=")
        if len(parts) != 2 or not all(parts) or ORDER.search(pred) or _APPROX.search(pred):
            return False
        if is_name(parts[1]) and re.search(r"\d", parts[0]):
            return self._same(gold, parts[0])
        if _VARIABLE.search(re.sub(rf"\\[A-Za-z]+|{MARK}[^{MARK}]*{MARK}", " ", parts[0])):
            return False
        return self._same(gold, parts[1]) and self._same(parts[1], parts[0])

    def _same_quantity(self, gold: str, pred: str) -> bool:
        gold_letter = letter_of(gold)
        if gold_letter is not None and (gold_letter not in "ie" or letter_of(pred) is not None):
            return letter_of(pred) == gold_letter
        if is_word(gold) or is_word(pred):
            words = [_TRUTH.get(words or "", words) for words in (words_in(gold), words_in(pred))]
            return words[0] == words[1] and not _is_other_case(gold, pred)
        noted = self._same_notation(gold, pred)
        if noted is not None:
            return noted
        a, b = match_units(split_unit(gold), split_unit(pred))
        if not same_unit(a, b):
            return False
        x, y = a.number(), b.number()
        if y is None and x is not None and b.scale == 1:
            y = reads_as_decimal_comma(b.body)
        if x is not None and y is not None:
            if b.unit == "%" and not a.unit and abs(x.value) < 1:
                return _same_percent(x, a, y, b)  # beside a proportion a sign is not left out: 0.25 % is not 0.25
            return same_number(x, y) or _same_percent(x, a, y, b)
        if a.scale != 1 or b.scale != 1:
            scaled, plain = (a, b) if a.scale != 1 else (b, a)
            number = scaled.number()
            return number is not None and plain.scale == 1 and self._algebra("equal", plain.body, _written(number))
        if not (_is_formula(a.body) and _is_formula(b.body)):
            return squeeze(a.body).casefold() == squeeze(b.body).casefold()
        if squeeze(a.body) == squeeze(b.body):
            return True
        return self._algebra("equal", a.body, b.body)

    def _same_notation(self, gold: str, pred: str) -> bool | None:
        """The verdict on times, dates, ratios and numbers to a base; None where the gold answer is none of these."""
        time = read_time(gold)
        if time is not None:
            return time == read_time(pred)
        if is_date(gold) or is_date(pred):
            return squeeze(gold) == squeeze(pred)
        base = read_base(gold)
        if base is not None or read_base(pred) is not None:
            return base == read_base(pred)
        ratio = read_ratio(gold)
        if ratio is None:
            return False if read_ratio(pred) or read_time(pred) else None
        other = read_ratio(pred, beside_ratio=True)
        if other is None:
            return len(ratio) == 2 and self._same_quantity(rf"\frac{{{ratio[0]}}}{{{ratio[1]}}}", pred)
        if len(other) != len(ratio):
            return False
        pairs = zip(ratio[1:], other[1:], strict=True)
        return all(self._algebra("equal", f"({ratio[0]})({b})", f"({a})({other[0]})") for a, b in pairs)


def _renamed_argument(gold: str, pred: str) -> tuple[str, str] | None:
    """The letters x and t of `f(x)` and `f(t)`, of which the second may be renamed to the first; else None."""
    a, b = _FUNCTION_OF.fullmatch(gold), _FUNCTION_OF.fullmatch(pred)
    return (b[2], a[2]) if a and b and a[1] == b[1] and a[2] != b[2] else None


def _with_letter(text: str, old: str, new: str) -> str | None:
    """A formula with a letter renamed; None where it holds the new one already."""
    letters = re.sub(rf"\\[A-Za-z]+|{MARK}[^{MARK}]*{MARK}", " ", text)
    if new in letters:
        return None
    return re.sub(rf"(\\[A-Za-z]+|{MARK}[^{MARK}]*{MARK})|{old}", lambda m: m[1] or new, text)


def _is_one_name(gold: str, pred: str) -> bool:
    """`f(x)` may be written `f` or y, and `y` as `y(x)`; the letter in the bracket belongs to the formula."""
    bare = _ARGUMENT.sub("", gold)
    return pred in (gold, bare) or gold == _ARGUMENT.sub("", pred) or (bare != gold and pred == "y")


def _is_formula(text: str) -> bool:
    """Whether text commands stand for names of functions, single letters and degrees alone, and no base or prime."""
    return MARK not in _MATH_WORD.sub("", text) and not _NOTATION.search(text)


def _is_condition(text: str) -> bool:
    """Whether a text describes a set of numbers and no list, point or equation."""
    shape = shape_of(text)
    if shape.kind in ("union", "[)", "(]", "[]"):
        return True
    if value_side(text) is not None or (shape.kind in ("set", "list") and not _BUILDER.search(text)):
        return shape.kind == "list" and bool(ORDER.search(text)) and is_related(text)
    if _SETS.search(text):
        return True
    return any(depth == 0 and ORDER.match(text, place) for place, depth in depths(text))


def _written(number: Numeral) -> str:
    return rf"\frac{{{number.value.numerator}}}{{{number.value.denominator}}}"


def _comma_reading(gold: str, pred: str) -> bool | None:
    """The verdict with `0,5` read as 0.5, where the gold answer is one number."""
    number, quantity = split_unit(gold).number(), split_unit(pred)
    decimal = reads_as_decimal_comma(quantity.body)
    return None if number is None or decimal is None else same_number(number, decimal)


def _same_percent(x: Numeral, a: Quantity, y: Numeral, b: Quantity) -> bool:
    """10 % is 0.1; that a sign left out means the same is the rule for units."""
    if (a.unit == "%") == (b.unit == "%"):
        return False
    percent, plain = (x, y) if a.unit == "%" else (y, x)
    return not (a.unit and b.unit) and percent.value == plain.value * 100


def _is_other_case(gold: str, pred: str) -> bool:
    """Names of points keep their case, words do not: ABC is not abc, YES is yes."""
    a, b = (squeeze(text) for text in (gold, pred))
    return a.isupper() != b.isupper() and max(len(a), len(b)) <= 4 and a.casefold() not in _SHORT_WORDS
