r"""The normal form of an answer text: LaTeX cosmetics removed, the unit set apart, words told from formulas.

Works on text that `reward_fns.text.clean` has seen and `reward_fns.extract.bounded` has let pass.
"""

import functools
import re
from dataclasses import dataclass

from reward_fns.extract import closing_brace

_TEXT_COMMANDS = (
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|mathrm|mathbf|mathit|mathsf|mathtt|operatorname\*?|mbox|hbox|rm|bf)"
)
_TEXT_OPEN = re.compile(_TEXT_COMMANDS + r"\s*\{")
_BARE_FONT = re.compile(r"\\(?:rm|bf|it|displaystyle|textstyle|limits|mathstrut|strut)(?![A-Za-z])")
_SIZES = re.compile(r"\\(?:left|right|[bB]ig{1,2}[lrm]?|middle)(?![A-Za-z])\s*\.?(?=[\\()\[\]{}|<>/]|$)")
_SPACES = re.compile(r"(?<!\\)\\[,;:> ]|\\(?:quad|qquad|enspace|thinspace|medspace|thickspace|space)(?![A-Za-z])|~")
_PHANTOM = re.compile(r"\\(?:hspace|vspace|phantom|hphantom|vphantom|label|tag)\*?\s*\{[^{}]*\}")
_FRAC_NAMES = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_FRAC_SHORT = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))")
_SQRT_SHORT = re.compile(r"\\sqrt\s*([0-9A-Za-z])")
_ONE_IN_BRACES = re.compile(r"([\^_])\s*\{\s*([0-9A-Za-z])\s*\}")
_RENAMES = {
    "leqslant": "le",
    "leq": "le",
    "geqslant": "ge",
    "geq": "ge",
    "neq": "ne",
    "lbrace": "{",
    "rbrace": "}",
    "lvert": "|",
    "rvert": "|",
    "vert": "|",
    "infin": "infty",
    "varnothing": "emptyset",
    "land": "wedge",
    "lor": "vee",
    "rarr": "to",
    "rightarrow": "to",
    "colon": ":",
    "langle": "(",
    "rangle": ")",
}
_RENAME = re.compile(r"\\(" + "|".join(_RENAMES) + r")(?![A-Za-z])")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_WORD = re.compile(r"[A-Za-z][A-Za-z'\-]*(?:[ ,]+[A-Za-z][A-Za-z'\-]*)*")
_LETTER = re.compile(r"\(?\s*([A-Za-z])\s*\)?")

MARK = "\x02"
"""Stands before and after the content of a text command in a normal form, where LaTeX would have braces."""


@functools.lru_cache(maxsize=1024)  # a vote reads each of its answers many times
def normal_form(answer: str) -> str:
    r"""One spelling of an answer: no layout commands, `\frac{a}{b}`, `\text` in any font marked, no wrapping `$`, no
    full stop.
    """
    text = _unwrap(answer.replace(MARK, " ").strip())
    text = text.replace(r"\!", "").replace("{,}", ",").replace(r"\$", "$").replace(r"\%", "%").replace(r"\#", "#")
    text = text.replace(r"\lbrack", "[").replace(r"\rbrack", "]")
    text = _PHANTOM.sub(" ", text)
    text = _FRAC_NAMES.sub(r"\\frac", text)
    text = _RENAME.sub(lambda m: ("\\" if _RENAMES[m[1]] not in "|:()" else "") + _RENAMES[m[1]] + " ", text)
    text = _mark_text(text)
    text = _BARE_FONT.sub(" ", _SIZES.sub("", text))
    text = _SPACES.sub(" ", text)
    text = _FRAC_SHORT.sub(lambda m: rf"\frac{{{m[1] or m[2] or ''}}}{{{m[3] or m[4] or ''}}}", text)
    text = _SQRT_SHORT.sub(r"\\sqrt{\1}", text)
    text = _ONE_IN_BRACES.sub(r"\1\2", text)
    text = _DEGREES.sub(f" {MARK}degree{MARK} ", text)
    text = re.sub(r"\s+", " ", text)
    return _unwrap(text.strip())


def _unwrap(text: str) -> str:
    for _ in range(6):
        before = text
        text = re.sub(r"(?:\\[.,;:]|(?<!\\)\\|[.,;:?\s])+$", "", text.strip())
        text = text.removeprefix("=").lstrip()
        text = re.sub(r"^\\approx(?![A-Za-z])\s*", "", text)
        for start, end in _WRAPPERS:
            inner = text[len(start) : -len(end)]
            if (
                len(text) > len(start) + len(end)
                and text.startswith(start)
                and text.endswith(end)
                and start not in inner
            ):
                text = inner.strip()
        if text.startswith("{") and closing_brace(text, 0) == len(text) - 1:
            text = text[1:-1].strip()
        if text == before:
            return text
    return text


def _mark_text(text: str) -> str:
    parts, position = [], 0
    while (match := _TEXT_OPEN.search(text, position)) is not None:
        end = closing_brace(text, match.end() - 1)
        if end is None:
            break
        content = text[match.end() : end].replace("$", " ")
        parts += [text[position : match.start()], MARK, _mark_text(content).replace(MARK, " "), MARK]
        position = end + 1
    return "".join([*parts, text[position:]])


def squeeze(text: str) -> str:
    """The normal form without spaces or text marks: two answers of one squeezed form are the same answer."""
    # A space between digits may group thousands or part two numbers: not for this function to say.
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text.replace(MARK, " ")).strip()


def words_in(text: str) -> str | None:
    """The words that a whole answer is, folded in case and without brackets, or None if it holds anything else."""
    plain = re.sub(r"\s+", " ", text.replace(MARK, " ")).strip().rstrip(".")
    if plain.startswith("(") and plain.endswith(")"):
        plain = plain[1:-1].strip()
    return " ".join(plain.casefold().replace(",", " ").split()) if _WORD.fullmatch(plain) else None


def is_word(text: str) -> bool:
    """Whether an answer is to be compared as words: what stands in a text command, or four and more bare letters.

    Read as a product of variables, "seat" would equal "east".
    """
    words = words_in(text)
    if words is None:
        return False
    marked = text.strip().startswith(MARK) and text.strip().endswith(MARK)
    longest = max(map(len, words.split()))
    return longest >= 4 or (marked and longest >= 2)


def letter_of(text: str) -> str | None:
    """The single letter that an answer such as `(B)` or `B` is."""
    match = _LETTER.fullmatch(text.replace(MARK, " ").strip().rstrip(".").strip())
    return match[1] if match else None


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
    **dict.fromkeys(("%", "percent", "pct", "percentage"), "%"),
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
    r"(?P<gap>\s*)(?P<unit>(?:[A-Za-z]+|[€£¢%])(?:\s*\^\s*\d)?(?:\s*/\s*[A-Za-z]+(?:\s*\^\s*\d)?)?(?: [A-Za-z]+){0,2})$"
)
_NOT_UNITS = frozenset(
    "or and not is are no wrong maybe either about but false incorrect than if mod minus plus times over to half "
    "twice one two three four five six seven eight nine ten dozen hundred thousand million billion trillion base "
    "choose "
    "factorial squared cubed".split()
)
_UNIT_NAME = re.compile(
    r"[A-Za-z$€£¢%][A-Za-z\s.$€£¢%()'\-]*(?:\s*(?:\^\s*\{?\s*-?\d\s*\}?|(?:\\cdot|[/*])\s*[A-Za-z][A-Za-z\s.]*))*"
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """The body of an answer and its unit; `known` tells a unit of measure from a mere noun."""

    body: str
    unit: str = ""
    known: bool = False


def split_unit(text: str) -> Quantity:
    """Set apart a unit at the end, or a currency sign in front. A word that is no unit is dropped as a noun only
    after a number.
    """
    currency = _CURRENCY.match(text)
    if currency:
        inner = split_unit(currency[1] + text[currency.end() :])
        return Quantity(inner.body, canonical_unit(currency[2]), True)
    tail = _MARKED_TAIL.search(text)
    if tail and tail.start() > 0:
        return _quantity(text, tail.start(), tail[0])
    bare = _BARE_TAIL.search(text)
    if bare and bare.start() > 0 and _ends_number(text[: bare.start()]):
        unit = bare["unit"]
        if unit == "%" or bare["gap"] or canonical_unit(unit) != unit or len(unit) > 1:
            quantity = _quantity(text, bare.start(), unit)
            # "3 x" and "5ab" are algebra, not three or five of a noun.
            if quantity.known or (bare["gap"] and len(max(re.findall("[A-Za-z]+", unit) or [""], key=len)) >= 4):
                return quantity
    return Quantity(text)


def _ends_number(body: str) -> bool:
    return re.search(r"[\d}).]\s*$", body) is not None and re.search(r"(?<![\\A-Za-z])[A-Za-z]", body) is None


def _quantity(text: str, end: int, unit: str) -> Quantity:
    body = text[:end].strip()
    name = re.sub(r"\s+", " ", unit.replace(MARK, " ")).strip()
    words = set(re.findall(r"[a-z]+", name.lower()))
    if not body or words & _NOT_UNITS or len(words) > 4 or not _UNIT_NAME.fullmatch(name):
        return Quantity(text)
    canonical = canonical_unit(name)
    return Quantity(body, canonical, _is_known(canonical))


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
    for candidate in (base, base.lower(), base.lower().removesuffix("s"), base.lower().removesuffix("es")):
        if candidate in _UNIT_NAMES:
            base = _UNIT_NAMES[candidate]
            break
    else:
        base = base.lower()
    return base + (f"^{power.strip()}" if power.strip() not in ("", "1") else "")


_CANONICAL = frozenset(_UNIT_NAMES.values()) - {""}


def _is_known(canonical: str) -> bool:
    factors = re.split(r"/", canonical)
    return all(factor.partition("^")[0] in _CANONICAL for factor in factors)
