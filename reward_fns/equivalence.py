r"""Whether two answer texts are the same answer, by the strict rule for training.

Text, units, plain numbers and structure are decided here, exactly and in microseconds. What is left, formulas,
goes to an `algebra`
function: in a worker that is math-verify (`reward_fns.algebra`); in the caller's process it is `refuse_algebra`,
    so that both
run one and the same rule and the short cut cannot disagree.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from reward_fns.answer import MARK, is_word, letter_of, normal_form, split_unit, squeeze, words_in
from reward_fns.extract import bounded
from reward_fns.numerals import Numeral, read_number, reads_as_decimal_comma, same_number
from reward_fns.shapes import MAX_ITEMS, Shape, depths, shape_of, split_top

Algebra = Callable[[str, str], bool]

_RELATION = re.compile(
    r"(?<![\\])[<>=]|\\(?:le|ge|ne|lt|gt|approx|equiv|sim|in|subset|cong|mid|Rightarrow|implies|iff|to)(?![A-Za-z])"
)
_EQUALS = re.compile(r"(?<![<>!:\\])=(?!=)|\\(?:approx|equiv)(?![A-Za-z])|==")
_SUBSCRIPT = re.compile(r"_\s*(?:\{[^{}]*\}|\\?[A-Za-z]+|\d)")
_PRIME = re.compile(r"'+|\^\s*\{?\s*(?:\\prime|-1)\s*\}?")
_NAME_COMMANDS = re.compile(
    r"\\(?:angle|measuredangle|triangle|overline|overrightarrow|vec|hat|bar|tilde|widehat|mathcal|mathbb|max|min|log|ln|sin|cos|"
    r"tan|cot|sec|csc|det|dim|gcd|lcm|deg|arg|Re|Im|Pr|alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|"
    r"lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell)(?![A-Za-z])"
)
_DERIVATIVE = re.compile(r"\\frac\{d\^?2?\s*[A-Za-z]?\}\{d[A-Za-z](?:\^2)?\}")
_ARGUMENTS = re.compile(r"(?<=[A-Za-z])\s*\([^()]*\)")
_TUPLE_OF_NAMES = re.compile(r"\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)")
_SET_LIKE = ("(", "[")
_NOTATION = re.compile(r"\d\s*(?:_|')")
"""A number to a base, or with a prime: algebra would drop the mark."""


class NeedsAlgebra(Exception):
    """The two answers can only be told apart by algebra."""


def refuse_algebra(gold: str, pred: str) -> bool:
    """Stands in for algebra where none may run."""
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
    gold_shape, pred_shape = shape_of(gold), shape_of(pred)
    if any(is_chain(item) for item in pred_shape.items):
        return Verdict(False, "equality_chain")
    return Verdict(True) if _same_shape(gold, gold_shape, pred, pred_shape, algebra) else Verdict(False, "wrong")


def is_chain(item: str) -> bool:
    """`x=41=42`: more than one equality sign outside subscripts. Which link is the answer nobody can say."""
    return len(_EQUALS.findall(_SUBSCRIPT.sub("", item))) > 1


def _same_shape(gold: str, gold_shape: Shape, pred: str, pred_shape: Shape, algebra: Algebra) -> bool:
    if gold_shape.kind == "one" and len(gold_shape.items) == 1:
        gold = gold_shape.items[0]
        if pred_shape.kind == "one":
            return _same_expression(gold, pred_shape.items[0], algebra)
        if pred_shape.unordered and len(pred_shape.items) == 1:
            return _same_expression(gold, pred_shape.items[0], algebra)
        comma = _comma_reading(gold, pred)
        if comma is not None:
            return comma
        unwrapped = _value_side(gold)
        if unwrapped is not None:
            return _same_shape(unwrapped, shape_of(unwrapped), pred, pred_shape, algebra)
        return _set_against_relation(gold, pred_shape) and algebra(gold, pred)
    if pred_shape.kind == "one":
        if len(gold_shape.items) == 1 and gold_shape.unordered:
            return _same_expression(gold_shape.items[0], pred_shape.items[0], algebra)
        if gold_shape.kind == "list" and len(parts := split_top(pred, ",;")) == len(gold_shape.items) > 1:
            return _matching(gold_shape.items, parts, algebra)
        unwrapped = _value_side(pred_shape.items[0])
        if unwrapped is not None:
            return _same_shape(gold, gold_shape, unwrapped, shape_of(unwrapped), algebra)
        return _set_against_relation(pred_shape.items[0], gold_shape) and algebra(gold, pred)
    if len(gold_shape.items) != len(pred_shape.items):
        return gold_shape.kind == pred_shape.kind == "union" and algebra(gold, pred)
    if gold_shape.unordered and pred_shape.unordered:
        if (gold_shape.kind == "union") != (pred_shape.kind == "union"):
            return False
        return _matching(gold_shape.items, pred_shape.items, algebra)
    if gold_shape.kind == pred_shape.kind or {gold_shape.kind, pred_shape.kind} == {"list", "()"}:
        return all(_same_part(a, b, algebra) for a, b in zip(gold_shape.items, pred_shape.items, strict=True))
    return False


def _same_part(gold: str, pred: str, algebra: Algebra) -> bool:
    if squeeze(gold) == squeeze(pred):
        return True
    return _same_shape(gold, shape_of(gold), pred, shape_of(pred), algebra)


def _matching(gold: tuple[str, ...], pred, algebra: Algebra) -> bool:
    """Whether the parts can be paired off, whatever their order."""
    left = list(pred)
    hard = []
    for item in gold:
        match = next((other for other in left if squeeze(other) == squeeze(item)), None)
        if match is None:
            hard.append(item)
        else:
            left.remove(match)
    for item in hard:
        match = next((other for other in left if _same_part(item, other, algebra)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _comma_reading(gold: str, pred: str) -> bool | None:
    """The verdict with `0,5` read as 0.5, where the gold answer is one number."""
    number, quantity = read_number(split_unit(gold).body), split_unit(pred)
    decimal = reads_as_decimal_comma(quantity.body)
    return None if number is None or decimal is None else same_number(number, decimal)


def _set_against_relation(expression: str, shape: Shape) -> bool:
    """`x > 3` and its interval may be compared by algebra; any other expression against a structure is a miss."""
    interval_like = shape.kind == "union" or shape.kind[0] in _SET_LIKE or shape.kind == "set"
    return (
        interval_like and re.search(r"[<>]|\\(?:le|ge|ne|cup|cap|setminus|mathbb)(?![A-Za-z])", expression) is not None
    )


def _value_side(text: str) -> str | None:
    """`42` of `x = 42`: the right side, where the left side merely names what was asked for; else None."""
    parts = split_top(text, "=")
    if len(parts) != 2 or not all(parts) or text[text.index("=") - 1] in "<>!:\\":
        return None
    return parts[1] if _is_name(parts[0]) else None


def _is_name(side: str) -> bool:
    """A name, a function of something, or a sum of names such as `m + n`; a digit makes it an equation to be solved."""
    if _TUPLE_OF_NAMES.fullmatch(side):
        return True
    plain = re.sub(rf"{MARK}[^{MARK}]*{MARK}", " w ", side)
    plain = _DERIVATIVE.sub(" w ", _PRIME.sub("", _SUBSCRIPT.sub("", plain)))
    plain = _NAME_COMMANDS.sub(" w", plain)
    plain = re.sub(r"[{}|]", " ", _ARGUMENTS.sub("", plain))
    return re.fullmatch(r"\s*[A-Za-z][A-Za-z\s+\-]{0,60}", plain) is not None


def _same_expression(gold: str, pred: str, algebra: Algebra) -> bool:
    if squeeze(gold) == squeeze(pred):
        return True
    gold_related, pred_related = _is_related(gold), _is_related(pred)
    if pred_related and not gold_related:
        value = _value_side(pred)
        if value is not None:
            return _same_part(gold, value, algebra)
        parts = split_top(pred, "=")
        # `3 + 4 = 7` states a fact; `41 = 42` does not.
        if len(parts) == 2 and not re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", parts[0])):
            return _same_part(gold, parts[1], algebra) and _same_part(parts[1], parts[0], algebra)
        return False
    if gold_related and not pred_related:
        value = _value_side(gold)
        return value is not None and _same_part(value, pred, algebra)
    if gold_related:
        gold_value, pred_value = _value_side(gold), _value_side(pred)
        if gold_value is not None and pred_value is not None:
            gold_name, pred_name = squeeze(split_top(gold, "=")[0]), squeeze(split_top(pred, "=")[0])
            if gold_name == pred_name:
                return _same_part(gold_value, pred_value, algebra)
        return algebra(gold, pred)
    return _same_quantity(gold, pred, algebra)


def _is_related(text: str) -> bool:
    return any(depth_zero and _RELATION.match(token) for token, depth_zero in _top_tokens(text))


def _top_tokens(text: str):
    for position, depth in depths(text):
        yield text[position : position + 12], depth == 0


def _same_quantity(gold: str, pred: str, algebra: Algebra) -> bool:
    gold_letter = letter_of(gold)
    if gold_letter is not None:
        return letter_of(pred) == gold_letter
    if is_word(gold) or is_word(pred):
        return words_in(gold) == words_in(pred)
    a, b = split_unit(gold), split_unit(pred)
    if a.known and b.known and a.unit and b.unit and a.unit != b.unit:
        return False
    x, y = read_number(a.body), read_number(b.body)
    if y is None and x is not None:
        y = reads_as_decimal_comma(b.body)
    if x is not None and y is not None:
        return same_number(x, y) or _same_percent(x, a.unit, y, b.unit)
    if any(MARK in body or _NOTATION.search(body) for body in (a.body, b.body)):
        return squeeze(a.body).casefold() == squeeze(b.body).casefold()
    if squeeze(a.body) == squeeze(b.body):
        return True
    return algebra(a.body, b.body)


def _same_percent(x: Numeral, x_unit: str, y: Numeral, y_unit: str) -> bool:
    """10 % is 0.1; that a sign left out means the same is the rule for units."""
    if (x_unit == "%") == (y_unit == "%"):
        return False
    percent, plain = (x, y) if x_unit == "%" else (y, x)
    return not (x_unit and y_unit) and percent.value == plain.value * 100


def gold_problem(gold: str, parses: Callable[[str], bool]) -> str:
    """Why no response could be judged against this gold answer; "" when it is sound.

    Args:
        parses: whether algebra can read an expression; asked only where text, words and numbers do not suffice.
    """
    text = normal_form(gold)
    if not text:
        return "gold_missing"
    if bounded(text).reason:
        return "gold_unparsable"
    shape = shape_of(text)
    if len(shape.items) > MAX_ITEMS:
        return "gold_unparsable"
    return "" if all(_is_sound(item, parses) for item in shape.items) else "gold_unparsable"


def _is_sound(item: str, parses: Callable[[str], bool]) -> bool:
    if not item:
        return False
    inner = shape_of(item)
    if inner.kind != "one":
        return all(_is_sound(part, parses) if part != item else parses(part) for part in inner.items)
    value = _value_side(item) or item
    if letter_of(value) is not None or is_word(value):
        return True
    body = split_unit(value).body
    return read_number(body) is not None or MARK in body or parses(item if _is_related(item) else body)
