"""Units: set apart from the number they belong to, and brought to one name each."""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from reward_fns.answer import MARK
from reward_fns.numerals import SCALE_WORDS, Numeral, read_number

_LENGTHS = {"mm": "millimeter", "cm": "centimeter", "dm": "decimeter", "m": "meter", "km": "kilometer"}
_UNIT_NAMES = {
    **{alias: short for short, name in _LENGTHS.items() for alias in (short, name, name.replace("meter", "metre"))},
    **dict.fromkeys(("in", "inch", "inche"), "in"),
    **dict.fromkeys(("ft", "foot", "feet"), "ft"),
    **dict.fromkeys(("yd", "yard"), "yd"),
    **dict.fromkeys(("mi", "mile"), "mi"),
    **dict.fromkeys(("mg", "milligram"), "mg"),
    **dict.fromkeys(("g", "gram", "gramme"), "g"),
    **dict.fromkeys(("kg", "kilogram", "kilo"), "kg"),
    **dict.fromkeys(("t", "ton", "tonne"), "t"),
    **dict.fromkeys(("lb", "pound"), "lb"),
    **dict.fromkeys(("oz", "ounce"), "oz"),
    **dict.fromkeys(("ml", "mL", "milliliter", "millilitre"), "ml"),
    **dict.fromkeys(("l", "L", "liter", "litre"), "l"),
    **dict.fromkeys(("gal", "gallon"), "gal"),
    **dict.fromkeys(("ms", "millisecond"), "ms"),
    **dict.fromkeys(("s", "sec", "second"), "s"),
    **dict.fromkeys(("min", "minute"), "min"),
    **dict.fromkeys(("h", "hr", "hour"), "h"),
    **dict.fromkeys(("day",), "day"),
    **dict.fromkeys(("week",), "week"),
    **dict.fromkeys(("month",), "month"),
    **dict.fromkeys(("yr", "year"), "year"),
    **dict.fromkeys(("mph",), "mi/h"),
    **dict.fromkeys(("kph", "kmh"), "km/h"),
    **dict.fromkeys(("$", "dollar", "usd", "USD", "buck"), "$"),
    **dict.fromkeys(("cent", "¢"), "cent"),
    **dict.fromkeys(("€", "euro", "eur", "EUR"), "€"),
    **dict.fromkeys(("£", "GBP"), "£"),
    **dict.fromkeys(("¥", "yen"), "yen"),
    **dict.fromkeys(("₹", "rupee"), "rupee"),
    **dict.fromkeys(("degree", "deg"), "degree"),
    **dict.fromkeys(("rad", "radian"), "rad"),
    **dict.fromkeys(("%", "percent", "per cent", "pct", "percentage"), "%"),
    **dict.fromkeys(("N", "newton"), "N"),
    **dict.fromkeys(("J", "joule"), "J"),
    **dict.fromkeys(("kJ", "kilojoule"), "kJ"),
    **dict.fromkeys(("W", "watt"), "W"),
    **dict.fromkeys(("kW", "kilowatt"), "kW"),
    **dict.fromkeys(("V", "volt"), "V"),
    **dict.fromkeys(("A", "ampere", "amp"), "A"),
    **dict.fromkeys(("Hz", "hertz"), "Hz"),
    **dict.fromkeys(("Pa", "pascal"), "Pa"),
    **dict.fromkeys(("K", "kelvin"), "K"),
    **dict.fromkeys(("mol", "mole"), "mol"),
    **dict.fromkeys(("unit",), ""),
}
_CURRENCY = re.compile(r"([-+]?)\s*([$€£¥₹])\s*(?=[\d.])")
_MARKED_TAIL = re.compile(rf"(?:\s*{MARK}[^{MARK}]*{MARK}\s*(?:\^\s*\{{?\s*-?\d\s*\}}?)?[\s/*]*(?:\\cdot)?\s*)+$")
_BARE_TAIL = re.compile(
    r"(?P<gap>\s*)(?P<unit>(?:[A-Za-z]+|[€£¢%$])(?:\s*\^\s*\d)?(?:\s*/\s*[A-Za-z]+(?:\s*\^\s*\d)?)?"
    r"(?: [A-Za-z]+){0,2})$"
)
_NOT_UNITS = frozenset(
    "or and not is are no wrong maybe either neither nor about approximately approx roughly nearly almost around but "
    "false incorrect than if mod modulo minus plus times over to of at by most least exactly half halves third thirds "
    "quarter quarters fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths eleventh elevenths "
    "twelfth twelfths sixteenth sixteenths twice doubled tripled halved gross mil mln sqrt log ln sin cos tan exp pi "
    "zero one two three four five six seven eight nine ten tens pair pairs score scores negative negatives reciprocal "
    "reciprocals inverse opposite repeating recurring conjugate complement imaginary fewer less more conversely "
    "dozenth base choose factorial squared cubed st nd rd th am pm something anything vs versus".split()
)
_GENERIC = frozenset(
    "way arrangement possibility possibilitie solution outcome choice combination permutation number value integer "
    "element item case method selection sequence subset pair time".split()
)
"""Nouns for what is counted in a problem of counting: any of them stands for any other."""
_ANGLE_OF = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
"""Degrees after these belong to their argument."""
_UNIT_NAME = re.compile(
    r"[A-Za-z$€£¢%][A-Za-z\s.$€£¢%()'\-]*(?:\s*(?:\^\s*\{?\s*-?\d\s*\}?|(?:\\cdot|[/*])\s*[A-Za-z][A-Za-z\s.]*))*"
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """The body of an answer and its unit.

    Attributes:
        known: a unit of measure, and not a mere noun.
        scale: of a word such as "million" after the number, else 1.
        whole: the text before the unit was set apart, where its letters could be variables: `3m^2`, `2mg`, `5 s`.
    """

    body: str
    unit: str = ""
    known: bool = False
    scale: Fraction = Fraction(1)
    whole: str = ""

    def number(self) -> Numeral | None:
        """The plain number that the body is, or None."""
        numeral = read_number(self.body)
        if numeral is None or self.scale == 1:
            return numeral
        return Numeral(numeral.value * self.scale)


def match_units(a: Quantity, b: Quantity) -> tuple[Quantity, Quantity]:
    """Two quantities, with letters that could be variables taken for a unit only where the other side names the same.

    `10m` is ten metres beside `10\\text{ m}`; beside `10`, or beside `10m`, it is a product.
    """
    if a.whole and (b.whole or b.unit != a.unit):
        a = Quantity(a.whole)
    if b.whole and (a.whole or a.unit != b.unit):
        b = Quantity(b.whole)
    return a, b


def same_unit(a: Quantity, b: Quantity) -> bool:
    """Whether two units may stand for one: either is left out, or they are one unit, or nouns for one thing.

    Nouns agree when the words of one are among those of the other, or when both are general names for what is counted.
    """
    if not a.unit or not b.unit or a.unit == b.unit:
        return True
    if a.known or b.known:
        return False
    words, others = (frozenset(word.removesuffix("s") for word in unit.split()) for unit in (a.unit, b.unit))
    return words <= others or others <= words or (bool(words & _GENERIC) and bool(others & _GENERIC))


def split_unit(text: str) -> Quantity:
    """Set apart a unit at the end, or a currency sign in front.

    A word that is no unit of measure is a noun only after a number, and a letter only where it is a unit of measure: in
    all other cases it belongs to the formula.
    """
    currency = _CURRENCY.match(text)
    if currency:
        inner = split_unit(currency[1] + text[currency.end() :])
        if inner.unit in ("", canonical_unit(currency[2])):
            return Quantity(inner.body, canonical_unit(currency[2]), True, inner.scale)
        return Quantity(text)
    tail = _MARKED_TAIL.search(text)
    if tail and tail.start() > 0:
        return _quantity(text, tail.start(), tail[0])
    bare = _BARE_TAIL.search(text)
    if bare and bare.start() > 0 and _ends_number(text[: bare.start()]):
        unit = bare["unit"]
        if unit in "%€£¢$" or bare["gap"] or canonical_unit(unit) != unit or len(unit) > 1:
            quantity = _quantity(text, bare.start(), unit)
            # "3 x" and "5ab" are algebra, not three or five of a noun.
            longest = len(max(re.findall("[A-Za-z]+", unit) or [""], key=len))
            if quantity.known and quantity.scale == 1 and _could_be_variables(bare["gap"], unit):
                return replace(quantity, whole=text)
            if quantity.known or quantity.scale != 1 or (bare["gap"] and longest >= 4):
                return quantity
    return Quantity(text)


def _could_be_variables(gap: str, unit: str) -> bool:
    """Whether a bare unit may as well be a product: it has symbols of one or two letters, and either all of them are of
    one letter or no space parts them from the number."""
    longest = max(map(len, re.findall("[A-Za-z]+", unit)), default=9)
    return longest <= 2 and (not gap or longest == 1)


def _ends_number(body: str) -> bool:
    return re.search(r"[\d}).]\s*$", body) is not None and re.search(r"(?<![\\A-Za-z])[A-Za-z]", body) is None


def _quantity(text: str, end: int, unit: str) -> Quantity:
    body = text[:end].strip()
    name = re.sub(r"\s+", " ", unit.replace(MARK, " ")).strip()
    scale = Fraction(1)
    first, _, rest = name.partition(" ")
    if first.lower() in SCALE_WORDS:
        scale, name = Fraction(SCALE_WORDS[first.lower()]), rest.strip()
        if read_number(body) is None:
            return Quantity(text)
    words = re.findall(r"[a-z]+", name.lower())
    if not body or set(words) & (_NOT_UNITS | set(SCALE_WORDS)) or len(words) > 4:
        return Quantity(text)
    if not name:
        return Quantity(body, scale=scale)
    if not _UNIT_NAME.fullmatch(name):
        return Quantity(text)
    canonical = canonical_unit(name)
    known = _is_known(canonical)
    if canonical == "degree" and _ANGLE_OF.search(body):
        return Quantity(text)
    if not known and max(map(len, words), default=0) < 3:
        return Quantity(text)
    return Quantity(body, canonical, known, scale)


def canonical_unit(name: str) -> str:
    """`square centimeters`, `cm^{2}` and `sq cm` are all `cm^2`; a word that is no unit of measure is only folded in
    case.
    """
    name = re.sub(r"[{}.]|\\cdot", " ", name).replace(" per ", "/").strip()
    match = re.match(r"(?i)(square|sq|cubic|cu)\s+(.+)$", name)
    if match:
        name = match[2] + ("^2" if match[1][0] in "sS" else "^3")
    return "/".join(_canonical_factor(part.strip()) for part in name.split("/"))


def _canonical_factor(part: str) -> str:
    base, _, power = re.sub(r"\s*\^\s*", "^", part).partition("^")
    base = base.strip()
    lower = base.lower() if len(base) > 2 else base  # M is no metre
    for candidate in (base, lower, lower.removesuffix("s"), lower.removesuffix("es")):
        if candidate in _UNIT_NAMES:
            base = _UNIT_NAMES[candidate]
            break
    else:
        base = lower
    return base + (f"^{power.strip()}" if power.strip() not in ("", "1") else "")


_CANONICAL = frozenset(_UNIT_NAMES.values()) - {""}  # "unit" is no measure


def _is_known(canonical: str) -> bool:
    factors = re.split(r"/", canonical)
    return all(factor.partition("^")[0] in _CANONICAL for factor in factors)
