r"""Plain numbers in answers, read exactly: the written policy on percent, decimal comma, thousands and scientific
notation.

A number is read as a fraction of integers, never as a float, so that 0.1 and 0.1000001 differ and 1/2^99 is not
0. The policy is tabulated in REFERENCE.md, "How numbers are read".
"""

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

MAX_EXPONENT = 400
MIN_ROUNDED_DECIMALS = 6
"""A decimal with at least this many places equals a non-terminating value that rounds to it: 0.333333 is 1/3, 0.333
is not.
"""

_GROUPED = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+"
_DECIMAL = rf"(?:(?:{_GROUPED})(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(rf"(?P<decimal>{_DECIMAL})")
_EUROPEAN = re.compile(r"(?P<whole>\d{1,3}(?:\.\d{3})+|\d{1,3}(?: \d{3})+)(?:,(?P<part>\d+))?")
_REPEATING = re.compile(
    r"(?P<whole>\d*)\.(?P<part>\d*?)(?:\\(?:overline|bar|dot)\{?(?P<over>\d+)\}?|\((?P<round>\d+)\)"
    r"|\\dot\{?(?P<first>\d)\}?(?P<middle>\d*)\\dot\{?(?P<last>\d)\}?|(?P<tail>(?P<unit>\d{1,6}?)(?P=unit){2,})(?:\.{3}|\\l?dots))"
)
_SCIENTIFIC = re.compile(
    rf"(?:(?P<mantissa>{_DECIMAL})\s*(?:[eE]|(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*)|(?P<bare>10)\s*\^\s*)"
    r"(?P<open>\{)?\s*(?P<exponent>[+-]?\s*\d{1,6})\s*(?(open)\})"
)
_FRACTION = re.compile(
    rf"(?:(?P<whole>\d+)\s*)??(?:\\frac\s*\{{\s*(?P<top>[+-]?\s*{_DECIMAL})\s*\}}\s*\{{\s*(?P<bottom>{_DECIMAL})\s*\}}"
    rf"|(?<![\d])(?P<slash_top>{_DECIMAL})\s*/\s*(?P<slash_bottom>{_DECIMAL}))"
)
_MIXED_SLASH = re.compile(r"(?P<whole>\d+)\s+(?P<top>\d+)\s*/\s*(?P<bottom>\d+)")
SCALE_WORDS: dict[str, int | Fraction] = {
    **dict.fromkeys(("hundred", "hundreds"), 10**2),
    **dict.fromkeys(("thousand", "thousands"), 10**3),
    **dict.fromkeys(("million", "millions"), 10**6),
    **dict.fromkeys(("billion", "billions"), 10**9),
    **dict.fromkeys(("trillion", "trillions"), 10**12),
    **dict.fromkeys(("quadrillion", "quadrillions"), 10**15),
    **dict.fromkeys(("quintillion", "quintillions"), 10**18),
    **dict.fromkeys(("dozen", "dozens"), 12),
    **dict.fromkeys(("lakh", "lakhs"), 10**5),
    **dict.fromkeys(("crore", "crores"), 10**7),
    **dict.fromkeys(("tenth", "tenths"), Fraction(1, 10)),
    **dict.fromkeys(("hundredth", "hundredths"), Fraction(1, 100)),
    **dict.fromkeys(("thousandth", "thousandths"), Fraction(1, 1000)),
    **dict.fromkeys(("millionth", "millionths"), Fraction(1, 10**6)),
    **dict.fromkeys(("billionth", "billionths"), Fraction(1, 10**9)),
}
"""Words after a number that belong to its value."""
_DECIMAL_COMMA = re.compile(r"[+-]?\s*\d+,\d+")
_THOUSANDS_COMMA = re.compile(r"[+-]?\s*[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Numeral:
    """An exact value, and how many decimal places it was written with (None: not written as a decimal)."""

    value: Fraction
    decimals: int | None = None

    def rounded_places(self) -> int | None:
        """Its decimal places, where they are enough to stand for an endless value that rounds to it; else None."""
        if self.decimals is None or self.decimals < MIN_ROUNDED_DECIMALS:
            return None
        significant = len(str(abs(self.value.numerator) * 10**self.decimals // self.value.denominator))
        return self.decimals if significant >= MIN_ROUNDED_DECIMALS - 1 else None


@functools.lru_cache(maxsize=1024)
def read_number(text: str) -> Numeral | None:
    """The plain number that the whole of `text` is, or None."""
    text = text.strip()
    if not text or len(text) > 500:
        return None
    sign = 1
    if text[0] in "+-":
        sign = -1 if text[0] == "-" else 1
        text = text[1:].lstrip()
    numeral = _read_unsigned(text)
    return None if numeral is None else Numeral(sign * numeral.value, numeral.decimals)


def _read_unsigned(text: str) -> Numeral | None:
    if not text or not (text[0].isdigit() or text[0] in ".\\"):
        return None
    if match := _NUMBER.fullmatch(text):
        return _decimal(match["decimal"])
    if match := _EUROPEAN.fullmatch(text):
        whole, part = re.sub(r"[. ]", "", match["whole"]), match["part"]
        # 1.234 alone is a decimal and was read above; 1.234.567 can only be thousands.
        return _decimal(f"{whole}.{part}" if part else whole)
    if match := _SCIENTIFIC.fullmatch(text):
        exponent = int(match["exponent"].replace(" ", ""))
        if abs(exponent) > MAX_EXPONENT:
            return None
        mantissa = _decimal(match["mantissa"]) if match["mantissa"] else Numeral(Fraction(1))
        return Numeral(mantissa.value * Fraction(10) ** exponent)
    if match := _MIXED_SLASH.fullmatch(text):
        return _mixed(match["whole"], int(match["top"]), int(match["bottom"]))
    if match := _FRACTION.fullmatch(text):
        top = _signed(match["top"] or match["slash_top"])
        bottom = _signed(match["bottom"] or match["slash_bottom"])
        if match["whole"]:
            integers = top.denominator == bottom.denominator == 1
            return _mixed(match["whole"], int(top), int(bottom)) if integers else None
        return Numeral(top / bottom) if bottom else None
    if (repeating := read_repeating(text)) is not None:
        return Numeral(repeating)
    return None


def _decimal(text: str) -> Numeral:
    digits = re.sub(r"[, ]", "", text)
    return Numeral(Fraction(digits), len(digits.partition(".")[2]) if "." in digits else None)


def _signed(text: str) -> Fraction:
    return Fraction(re.sub(r"[, ]", "", text))


def _mixed(whole: str, top: int, bottom: int) -> Numeral | None:
    return Numeral(int(whole) + Fraction(top, bottom)) if 0 < top < bottom else None


def read_repeating(text: str) -> Fraction | None:
    r"""The value of `0.1\overline{6}`, `0.\dot{1}\dot{8}`, `0.(6)` or `0.666...` (written three times), or None."""
    match = _REPEATING.fullmatch(text.replace(" ", ""))
    if match is None:
        return None
    dotted = match["first"] and match["first"] + match["middle"] + match["last"]
    part, repeat = match["part"], match["over"] or match["round"] or dotted or match["unit"]
    head = Fraction(int((match["whole"] or "0") + part), 10 ** len(part))
    return head + Fraction(int(repeat), (10 ** len(repeat) - 1) * 10 ** len(part))


def reads_as_decimal_comma(text: str) -> Numeral | None:
    """`0,5` as 0.5. Only where the other side is one number: elsewhere a comma separates, or groups thousands."""
    text = text.strip()
    if not _DECIMAL_COMMA.fullmatch(text) or _THOUSANDS_COMMA.fullmatch(text):
        return None
    return read_number(text.replace(",", "."))


def same_number(a: Numeral, b: Numeral) -> bool:
    """Exact equality; or a long enough decimal that is the other, non-terminating value rounded to its places."""
    if a.value == b.value:
        return True
    decimal, exact = (a, b) if b.decimals is None else (b, a)
    places = decimal.rounded_places()
    if places is None or exact.decimals is not None or _terminates(exact.value):
        return False
    return round(exact.value * 10**places) == decimal.value * 10**places


def _terminates(value: Fraction) -> bool:
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1
