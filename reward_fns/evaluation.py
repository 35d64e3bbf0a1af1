"""The value of a formula, exactly where it is rational, and whether two formulas are equal.

Constants of rational value are compared as fractions of integers: no tolerance, no underflow. Others are evaluated to
as many digits as the smallest and largest number within them call for, so that a difference of 1/200! is seen. Formulas
with variables are compared at rational points; two different formulas agree at all of them only by an accident that
nobody can aim at more easily than at the answer.
"""

import math
import zlib
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, TypeAlias

import mpmath

from reward_fns.formula import Tree, contains, symbols_in

MAX_BITS = 100_000
"""Of a numerator or denominator; a larger number is not worked out."""
MAX_DIGITS = 4_000
MAX_SYMBOLS = 12
MAX_TERMS = 2_000
_FIRST_DIGITS = 50
_KEEPS_DIGITS = frozenset({"number", "symbol", "multiply", "divide", "power", "root", "sqrt", "exp", "abs", "prod"})
"""Operations whose result has as many sound digits as what goes in; others may be near nothing by cancellation."""
_POINTS = 6
_SIZES = (Fraction(1), Fraction(37), Fraction(1, 23), Fraction(7), Fraction(17), Fraction(1, 7))
_POSITIVE = 3
"""So many of the points are positive in all variables; at the others every second variable is negative, at the first of
them far out and larger than the rest, so that |x + 5| and |a + b| are seen."""
_ODD = (21, 12, 38, 56, 3, 45, 52, 26, 33, 18, 7, 55)
"""For each variable a bit for each point, whether its numerator is odd there: were it always, (-1)^n would be -1."""

# mpmath has no types: beside a Fraction, a value is its mpf, or mpc.
Value: TypeAlias = Fraction | Any
Point = dict[str, Fraction]


class TooLarge(ArithmeticError):
    """The value takes more digits than are worth working out."""


class Undefined(ArithmeticError):
    """The formula has no value here."""


def as_float(value: Value) -> Any:
    """A value as a number of mpmath, in its present precision."""
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


class _Evaluator:
    """Evaluates trees at one point. `height` is the largest count of decimal digits that a number in between needs."""

    def __init__(self, point: Point, digits: int):
        self._point = point
        self._digits = digits
        self.height = 0.0

    def value(self, tree: Tree) -> Value:
        result = self._work_out(tree)
        if isinstance(result, Fraction):
            bits = max(result.numerator.bit_length(), result.denominator.bit_length())
            if bits > MAX_BITS:
                raise TooLarge
            self.height = max(self.height, 0.302 * bits)
        else:
            if not mpmath.isfinite(result):
                raise Undefined
            size = abs(result)
            if size and tree[0] not in _KEEPS_DIGITS and size <= mpmath.mpf(10) ** (self.height + 8 - self._digits):
                # What is left of a cancellation, as in cos(pi/2), is noise.
                return mpmath.mpf(0)
            if size:
                self.height = max(self.height, abs(float(mpmath.log10(size))))
        return result

    def _work_out(self, tree: Tree) -> Value:
        kind, parts = tree[0], tree[1:]
        if kind == "number":
            return parts[0]
        if kind == "symbol":
            return self._point[parts[0]]
        if kind == "pi":
            return +mpmath.pi
        if kind == "e":
            return +mpmath.e
        if kind == "imaginary":
            return mpmath.mpc(0, 1)
        if kind in ("sum", "prod"):
            return self._series(kind, *parts)
        return self._operation(kind, [self.value(part) for part in parts])

    def _series(self, kind: str, low: Tree, high: Tree, term: Tree, index: str) -> Value:
        first, last = self.value(low), self.value(high)
        if not all(isinstance(bound, Fraction) and bound.denominator == 1 for bound in (first, last)):
            raise Undefined
        if last - first > MAX_TERMS:
            raise TooLarge
        terms = []
        for number in range(int(first), int(last) + 1):
            self._point = {**self._point, index: Fraction(number)}
            terms.append(self.value(term))
        return self._operation("add" if kind == "sum" else "multiply", terms or [Fraction(kind == "prod")])

    def _operation(self, kind: str, values: list[Value]) -> Value:
        exact = all(isinstance(value, Fraction) for value in values)
        if kind in ("add", "multiply") and not exact:
            values = [as_float(value) for value in values]
        if kind == "add":
            return sum(values[1:], values[0])
        if kind == "multiply":
            return math.prod(values[1:], start=values[0])
        if kind == "divide":
            if values[1] == 0:
                raise Undefined
            return values[0] / values[1] if exact else as_float(values[0]) / as_float(values[1])
        if kind == "power":
            return self._power(*values)
        if kind == "root":
            index = values[1]
            if not isinstance(index, Fraction) or index == 0:
                raise Undefined
            return self._power(values[0], 1 / index)
        if kind == "factorial":
            return self._factorial(values[0])
        if kind == "binomial":
            return self._binomial(*values)
        if kind == "abs":
            return abs(values[0])
        if kind in ("gcd", "lcm"):
            if not all(isinstance(value, Fraction) and value.denominator == 1 for value in values):
                raise Undefined
            return Fraction((math.gcd if kind == "gcd" else math.lcm)(*map(int, values)))
        if kind in ("floor", "ceiling"):
            if not isinstance(values[0], Fraction | mpmath.mpf):
                raise Undefined
            rounded = (math.floor if kind == "floor" else math.ceil)(values[0])
            return Fraction(int(rounded))
        return self._function(kind, [as_float(value) for value in values])

    def _power(self, base: Value, exponent: Value) -> Value:
        if isinstance(exponent, Fraction):
            if abs(exponent) > 10**7 or (base == 0 and exponent <= 0):
                raise TooLarge if base != 0 else Undefined
            if isinstance(base, Fraction):
                return self._exact_power(base, exponent)
            if exponent.denominator == 1:
                return base ** int(exponent)
        if isinstance(exponent, mpmath.mpc) and abs(exponent.imag) > 10**6:
            raise TooLarge
        if abs(exponent) > 10**7:
            raise TooLarge
        if base == 0:
            raise Undefined
        return mpmath.power(as_float(base), as_float(exponent))

    def _exact_power(self, base: Fraction, exponent: Fraction) -> Value:
        power, index = exponent.numerator, exponent.denominator
        bits = max(base.numerator.bit_length(), base.denominator.bit_length(), 1)
        if base not in (0, 1, -1) and (bits - 1) * abs(exponent) > MAX_BITS:
            raise TooLarge
        if index == 1:
            return base**power
        if base < 0 and index % 2 == 0:
            root = mpmath.sqrt(-as_float(base)) if index == 2 else None
            if root is None:
                return mpmath.power(as_float(base), as_float(exponent))
            return mpmath.mpc(0, root) ** power
        sign = -1 if base < 0 else 1  # an odd root of a negative number is the real one, as at school
        top, bottom = _integer_root(abs(base.numerator), index), _integer_root(base.denominator, index)
        if top is not None and bottom is not None:
            return (sign * Fraction(top, bottom)) ** power
        # not the power of a root: where an exponent is a product of variables, its numerator is far larger than itself
        return sign ** (power % 2) * mpmath.power(as_float(abs(base)), as_float(exponent))

    def _factorial(self, value: Value) -> Value:
        if isinstance(value, Fraction) and value.denominator == 1:
            if value < 0:
                raise Undefined
            if value > 8_000:
                raise TooLarge
            return Fraction(math.factorial(int(value)))
        if abs(value) > 10**4:
            raise TooLarge
        return mpmath.gamma(as_float(value) + 1)

    def _binomial(self, n: Value, k: Value) -> Value:
        if all(isinstance(value, Fraction) and value.denominator == 1 for value in (n, k)) and n >= 0:
            smaller = min(k, n - k)
            if smaller > 4_000 or n.numerator.bit_length() * max(smaller, 1) > MAX_BITS:
                raise TooLarge
            return Fraction(math.comb(int(n), int(k)) if k >= 0 else 0)
        if max(abs(n), abs(k)) > 10**4:
            raise TooLarge
        return mpmath.binomial(as_float(n), as_float(k))

    def _function(self, kind: str, values: list) -> Value:
        if kind == "exp":
            return self._power(+mpmath.e, values[0])
        if any(abs(value) > mpmath.mpf(10) ** (self._digits // 2) for value in values):
            raise TooLarge
        if kind in ("ln", "log") and values[0] == 0:
            raise Undefined
        if kind == "log":
            if values[1] in (0, 1):
                raise Undefined
            return mpmath.ln(values[0]) / mpmath.ln(values[1])
        if kind in ("tanh", "coth"):
            # 1 - tanh(x) is about 2 exp(-2x): fewer digits would make it nothing.
            self.height = max(self.height, 0.87 * abs(float(mpmath.re(values[0]))))
        names = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec"}
        function: Callable = getattr(mpmath, names.get(kind, "acsc" if kind == "arccsc" else kind))
        result = function(values[0])
        # Trigonometry at a pole gives a huge number instead of none.
        if kind in ("tan", "cot", "sec", "csc") and abs(result) > mpmath.mpf(10) ** (self._digits - 10):
            raise Undefined
        return result


def _integer_root(number: int, index: int) -> int | None:
    """The exact root, or None where there is none or it is not worth looking for."""
    if number in (0, 1):
        return number
    if number.bit_length() > 4_000 or index > 64:
        return None
    guess = math.isqrt(number) if index == 2 else round(mpmath.root(number, index))
    return guess if guess**index == number else None


def evaluate(trees: Iterable[Tree], point: Point) -> tuple[list[Value], mpmath.mpf]:
    """The values of some trees at a point, and the difference below which two of them are one.

    Raises:
        TooLarge: a number in between has too many digits.
        Undefined: a tree has no value at this point.
    """
    trees = list(trees)
    digits = _FIRST_DIGITS
    for attempt in (1, 2):
        with mpmath.workdps(digits):
            evaluators = [_Evaluator(point, digits) for _ in trees]
            try:
                values = [one.value(tree) for one, tree in zip(evaluators, trees, strict=True)]
            except (ZeroDivisionError, ValueError, OverflowError, mpmath.libmp.libhyper.NoConvergence) as error:
                raise Undefined from error
            height = max(one.height for one in evaluators)
            needed = 40 + int(3 * height)
            is_exact = all(isinstance(value, Fraction) for value in values)
            if attempt == 2 or needed <= digits or is_exact:
                if not is_exact and height + 22 > digits:
                    raise TooLarge
                return values, mpmath.mpf(10) ** (int(height) + 12 - digits)
        digits = needed
        if digits > MAX_DIGITS:
            raise TooLarge
    raise AssertionError("unreachable")


def points_for(names: Iterable[str]) -> list[Point]:
    """Rational points for these variables, the same in every process."""
    points = []
    ordered = sorted(names)
    for number in range(_POINTS if ordered else 1):
        point = {}
        for place, name in enumerate(ordered):
            drawn = zlib.crc32(f"{name}/{number}".encode())
            numerator = 211 + drawn % 1789
            numerator += (numerator + (_ODD[place % len(_ODD)] >> number)) % 2
            size = _SIZES[number] * Fraction(numerator, 701 + 2 * (drawn // 1789 % 97))
            if number >= _POSITIVE and (place + number) % 2 == 1:
                size *= -5 if number == _POSITIVE else -1
            point[name] = size
        points.append(point)
    return points


def same_number_at(a: Value, b: Value, tolerance: mpmath.mpf) -> bool:
    """Whether two values are one: exactly where both are rational."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    with mpmath.workdps(MAX_DIGITS):
        return bool(abs(as_float(a) - as_float(b)) <= tolerance)


def is_real(value: Value, tolerance: mpmath.mpf) -> bool:
    """Whether a value has no imaginary part."""
    return not isinstance(value, mpmath.mpc) or bool(abs(value.imag) <= tolerance)


def constant(tree: Tree) -> tuple[Value, mpmath.mpf]:
    """The value of a tree without variables and its tolerance.

    Raises:
        TooLarge, Undefined: see `evaluate`; also Undefined when it has variables.
    """
    if symbols_in(tree):
        raise Undefined
    (value,), tolerance = evaluate([tree], {})
    return value, tolerance


def same_value(a: Tree, b: Tree) -> bool:
    """Whether two formulas are equal wherever both are real, and at two points at least.

    Raises:
        TooLarge: they cannot be told apart with a reasonable number of digits.
    """
    names = symbols_in(a) | symbols_in(b)
    if len(names) > MAX_SYMBOLS:
        return False
    complex_numbers = contains(a, "imaginary") or contains(b, "imaginary")
    agreed = 0
    for point in points_for(names):
        try:
            (left, right), tolerance = evaluate([a, b], point)
        except Undefined:
            continue
        except TooLarge:
            if not names:
                raise
            continue
        if not complex_numbers and names:
            real = [is_real(value, tolerance) for value in (left, right)]
            if not any(real):
                continue
            if not all(real):
                return False
        if not same_number_at(left, right, tolerance):
            return False
        agreed += 1
    return agreed >= (2 if names else 1)


def ratio_of(a: Tree, b: Tree) -> int:
    """The sign of the constant c with a = c b, where both vary; 0 where there is no such constant.

    So two equations `a = 0` and `b = 0` say the same in the same way, and two inequalities up to their direction.
    """
    names = symbols_in(a) | symbols_in(b)
    if not names or len(names) > MAX_SYMBOLS:
        return 0
    rows = []
    for point in points_for(names):
        try:
            (left, right), tolerance = evaluate([a, b], point)
        except (Undefined, TooLarge):
            continue
        if is_real(left, tolerance) and is_real(right, tolerance):
            rows.append((_real(left), _real(right), tolerance))
    if len(rows) < 3:
        return 0
    first = rows[0]
    if any(_is_constant([row[side] for row in rows], first[2]) for side in (0, 1)):
        return 0
    with mpmath.workdps(MAX_DIGITS):
        for left, right, tolerance in rows[1:]:
            cross = _product(left, first[1]), _product(first[0], right)
            if not same_number_at(*cross, 1000 * max(tolerance, first[2])):
                return 0
    return 1 if (first[0] > 0) == (first[1] > 0) else -1


def _is_constant(values: list[Value], tolerance: mpmath.mpf) -> bool:
    return all(same_number_at(value, values[0], tolerance) for value in values[1:])


def _real(value: Value) -> Value:
    return value.real if isinstance(value, mpmath.mpc) else value


def _product(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a * b
    return as_float(a) * as_float(b)


def rounds_to(value: Value, decimal: Fraction, places: int) -> bool:
    """Whether a real value rounds to a decimal with so many places."""
    if isinstance(value, mpmath.mpc):
        return False
    scale = 10**places
    if isinstance(value, Fraction):
        return abs(value - decimal) * 2 * scale <= 1
    with mpmath.workdps(MAX_DIGITS // 8):
        return bool(abs(value - as_float(decimal)) * 2 * scale <= 1)
