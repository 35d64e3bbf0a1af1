r"""The normal form of an answer text: LaTeX layout removed, words told from formulas.

Works on text that `reward_fns.text.clean` has seen and `reward_fns.extract.bounded` has let pass.
"""

import functools
import re

from reward_fns.text import closing_brace

_TEXT_COMMANDS = (
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|mathrm|mathbf|mathit|mathsf|mathtt|boldsymbol|bm|underline|operatorname\*?|"
    r"mbox|hbox|rm|bf)"
)
_TEXT_OPEN = re.compile(_TEXT_COMMANDS + r"\s*\{")
_BARE_FONT = re.compile(
    r"\\(?:rm|bf|it|displaystyle|textstyle|limits|mathstrut|strut|large|Large|LARGE|huge|Huge)(?![A-Za-z])"
)
_SIZES = re.compile(r"\\(?:left|right|[bB]ig{1,2}[lrm]?|middle)(?![A-Za-z])\s*\.?(?=[\\()\[\]{}|<>/]|$)")
_SPACES = re.compile(r"(?<!\\)\\[,;:> ]|\\(?:quad|qquad|enspace|thinspace|medspace|thickspace|space)(?![A-Za-z])|~")
_PHANTOM = re.compile(r"\\(?:hspace|vspace|phantom|hphantom|vphantom|label|tag|color|textcolor)\*?\s*\{[^{}]*\}")
_FRAC_NAMES = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_BINOM_NAMES = re.compile(r"\\[dt]binom(?![A-Za-z])")
_FRAC_SHORT = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))")
_SQRT_SHORT = re.compile(r"\\sqrt\s*([0-9A-Za-z])")
_ONE_IN_BRACES = re.compile(r"([\^_])\s*\{\s*([0-9A-Za-z])\s*\}(?!\d)")
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
    "lt": "<",
    "gt": ">",
    "smallsetminus": "setminus",
    "bigcup": "cup",
    "bigcap": "cap",
    "dots": "ldots",
    "cdots": "ldots",
    "backslash": "setminus",
}
_RENAME = re.compile(r"\\(" + "|".join(_RENAMES) + r")(?![A-Za-z])")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])")
_VECTOR = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|textbf|vec|hat)\s*(?:\{\s*(?:\\mathbf\s*)?\{?\s*(\\imath|\\jmath|[a-z])\s*\}?\s*\}|([a-z])(?![A-Za-z]))"
)
_MATH_LETTER = re.compile(r"\\(?:mathrm|mathit|mathsf|mathnormal|text|textit|rm|operatorname)\s*\{\s*([ie])\s*\}")
_ARRAY = re.compile(
    r"(?P<open>[(\[|]|\\\{)\s*\{?\s*\\begin\s*\{(?P<name>array|matrix)\}\s*(?:(?<=array\})\s*\{(?:[^{}]|\{[^{}]*\})*\})?"
    r"(?P<cells>(?:(?!\\begin|\\end).)*)\\end\s*\{(?P=name)\}\s*\}?\s*(?P<close>[)\]|]|\\\})",
    re.DOTALL,
)
_ARRAY_NAMES = {"()": "pmatrix", "[]": "bmatrix", "||": "vmatrix"}
_ROW_SPACE = re.compile(r"\\\\\s*\[[\d.]+\s*[a-z]{2}\]|\\hline(?![A-Za-z])")
_COMPARISONS = ((">=", r"\ge "), ("<=", r"\le "), ("!=", r"\ne "))
_DIGITS_APART = re.compile(r"(?<=\d,)\s*\\!\s*(?=\d{3}(?!\d))")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_WORD = re.compile(r"[A-Za-z][A-Za-z'\-]*(?:[ ,]+[A-Za-z][A-Za-z'\-]*)*")
_CONTINUED = re.compile(r"\.\s*\.$")
"""Dots that say that something follows, unlike a full stop."""
_LETTER = re.compile(r"\(?\s*([A-Za-z])\s*\)?")

_BARE_ROOT = re.compile(r"(?<![A-Za-z\\])sqrt\s*(?:\(([^()]+)\)|(\d+))")
_BARE_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_ANSWER_BEFORE = re.compile(
    r"^(\x02?)\s*(?:the\s+)?(?:final\s+)?answer\s*(?:is\b|:|=)\s*:?\s*\1\s*(?=[^\s\x02])(?!.*\x02$)", re.IGNORECASE
)
_ANSWER_AFTER = re.compile(r"\s*\x02?\s*\bis the (?:final |correct )?answer\s*\x02?$", re.IGNORECASE)
_THIN_UNIT = re.compile(r"(?<=[\d})])\s*(?:\\[,;: ]|~)\s*([A-Za-z]{1,3})(?=\s*(?:$|\^|/))")
"""A space that is written in a formula parts a number from its unit: `3\\,m` is three metres, `3m` a product."""

MARK = "\x02"
"""Stands before and after the content of a text command in a normal form, where LaTeX would have braces."""
_NO_SOLUTION = re.compile(rf"[\s{MARK}]*no (?:real )?solutions?(?: exists?)?\.?[\s{MARK}]*", re.IGNORECASE)
_ALL_MARKED = re.compile(rf"\s*{MARK}\s*([^{MARK}]*[^{MARK}\s])\s*{MARK}\s*")
_NUMBER_FIRST = re.compile(r"[-+$(.]*\s*\d")
_LETTERS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}")


@functools.lru_cache(maxsize=1024)  # a vote reads each of its answers many times
def normal_form(answer: str) -> str:
    r"""One spelling of an answer: no layout commands, `\frac{a}{b}`, `\text` in any font marked, no wrapping `$`, no
    full stop.
    """
    text = _without_dollars(_unwrap(answer.replace(MARK, " ").strip()))
    text = _BARE_ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2]}}}", _BARE_PI.sub(r"\\pi ", text))
    text = _DIGITS_APART.sub("", text).replace(r"\!", "").replace("{,}", ",").replace(r"\%", "%").replace(r"\#", "#")
    text = re.sub(r"\{\s*([-+=:.])\s*\}", r"\1", text)
    for written, command in _COMPARISONS:
        text = text.replace(written, command)
    text = text.replace(r"\lbrack", "[").replace(r"\rbrack", "]")
    text = _PHANTOM.sub(" ", _ROW_SPACE.sub(lambda m: r"\\" if m[0].startswith(r"\\") else " ", text))
    text = _MATH_LETTER.sub(r" \1 ", text)
    text = _VECTOR.sub(lambda m: rf"\vec{{{(m[1] or m[2]).lstrip(chr(92))[0]}}}", text)
    text = _BINOM_NAMES.sub(r"\\binom", _FRAC_NAMES.sub(r"\\frac", text))
    text = _RENAME.sub(lambda m: ("\\" if _RENAMES[m[1]] not in "|:()<>" else "") + _RENAMES[m[1]] + " ", text)
    text = _without_font(_mark_text(text))
    text = _BARE_FONT.sub(" ", _SIZES.sub("", text))
    text = _ARRAY.sub(_matrix, text)
    text = _SPACES.sub(" ", _THIN_UNIT.sub(rf" {MARK}\1{MARK}", text))
    text = _FRAC_SHORT.sub(lambda m: rf"\frac{{{m[1] or m[2] or ''}}}{{{m[3] or m[4] or ''}}}", text)
    text = _SQRT_SHORT.sub(r"\\sqrt{\1}", text)
    text = _ONE_IN_BRACES.sub(r"\1\2", text)
    text = re.sub(r"(^|[(\[,;=<>]|\\(?:le|ge|to|in)(?![A-Za-z]))\s*\+\s*(?=\\infty)", r"\1 ", text)
    text = _DEGREES.sub(f" {MARK}degree{MARK} ", text)
    text = re.sub(r"\s+", " ", text)
    text = _unwrap(_without_phrase(_unwrap(text.strip())))
    return r"\emptyset" if _NO_SOLUTION.fullmatch(text) else text


def _without_phrase(text: str) -> str:
    """The value of "the answer is 12" and of "12 is the answer", as written within a box."""
    plain = _ANSWER_BEFORE.sub("", text)
    return _ANSWER_AFTER.sub("", plain).strip() or text


def _without_dollars(text: str) -> str:
    """Mathematics marked by pairs of dollars is written out; a dollar by itself or with a backslash is a currency."""
    text = text.replace(r"\$", MARK)
    return (text.replace("$", " ") if text.count("$") % 2 == 0 else text).replace(MARK, "$")


def _matrix(match: re.Match) -> str:
    """An array within brackets is the matrix with these brackets; one within others stays as it is."""
    name = _ARRAY_NAMES.get(match["open"] + match["close"])
    return match[0] if name is None else rf"\begin{{{name}}}{match['cells']}\end{{{name}}}"


def _unwrap(text: str) -> str:
    for _ in range(6):
        before = text
        text = text.strip()
        if not _CONTINUED.search(text):
            text = re.sub(r"(?:\\[.,;:]|\\\\|(?<!\\)\\|[.,;:\s])+$", "", text)
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


def _without_font(text: str) -> str:
    """A formula that stands in a text or font command as a whole: bold type is no word."""
    whole = _ALL_MARKED.fullmatch(text)
    if whole is None or words_in(text) is not None or (_LETTERS.search(text) and not _NUMBER_FIRST.match(whole[1])):
        return text
    return whole[1]


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
    """Whether an answer is to be compared as words: what stands in a text command, four and more bare letters,
    capitals, or two and more letters with a vowel.

    Read as a product of variables, "seat" would equal "east".
    """
    words = words_in(text)
    if words is None:
        return False
    marked = text.strip().startswith(MARK) and text.strip().endswith(MARK)
    longest = max(map(len, words.split()))
    # A vowel makes "tea" a word and no product, capitals make ABC a name; "xy" and "pqr" are products.
    vowels = "[aeiou]" if longest > 2 else "[ou]"
    named = longest >= 2 and " " not in words and (text.strip().isupper() or re.search(vowels, words) is not None)
    return longest >= 4 or (marked and longest >= 2) or named


def letter_of(text: str) -> str | None:
    """The single letter that an answer such as `(B)` or `B` is."""
    match = _LETTER.fullmatch(text.replace(MARK, " ").strip().rstrip(".").strip())
    return match[1] if match else None
