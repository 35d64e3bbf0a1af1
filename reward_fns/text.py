"""Unicode and thinking tags: from what a model wrote to the plain text in which an answer is looked for."""

import functools
import re
import unicodedata

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢ", "0123456789+-()ni", strict=True))
_SUPERSCRIPT_RUN = re.compile("[" + "".join(map(re.escape, _SUPERSCRIPTS)) + "]+")
_SUBSCRIPT_RUN = re.compile("[" + "".join(map(re.escape, _SUBSCRIPTS)) + "]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_SIGNS = str.maketrans(
    {
        "−": "-",
        "‐": "-",
        "‑": "-",
        "‒": "-",
        "–": "-",
        "—": "-",
        "﹣": "-",
        "×": r"\times ",
        "⋅": r"\cdot ",
        "·": r"\cdot ",
        "∙": r"\cdot ",
        "÷": "/",
        "∕": "/",
        "⁄": "/",
        "±": r"\pm ",
        "∓": r"\mp ",
        "∞": r"\infty ",
        "°": r"^\circ ",
        "º": r"^\circ ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "⩽": r"\le ",
        "⩾": r"\ge ",
        "≦": r"\le ",
        "≧": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "≡": r"\equiv ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "→": r"\to ",
        "⇒": r"\Rightarrow ",
        "π": r"\pi ",
        "θ": r"\theta ",
        "α": r"\alpha ",
        "β": r"\beta ",
        "γ": r"\gamma ",
        "λ": r"\lambda ",
        "μ": r"\mu ",
        "φ": r"\phi ",
        "ω": r"\omega ",
        "ℝ": r"\mathbb{R}",
        "ℤ": r"\mathbb{Z}",
        "ℕ": r"\mathbb{N}",
        "ℚ": r"\mathbb{Q}",
        "ℂ": r"\mathbb{C}",
        "’": "'",
        "‘": "'",
        "′": "'",
        "“": '"',
        "”": '"',
    }
)
# NFKC would write the fraction without a space or braces, and 2½ would become 21/2.
_FRACTIONS = {
    character: rf"\frac{{{written[0]}}}{{{written[2]}}}"
    for character in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
    if (written := unicodedata.normalize("NFKC", character).partition("\u2044"))
}
_FIRST = _SIGNS | {ord(character): written for character, written in _FRACTIONS.items()}
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_ROOT = re.compile(r"√\s*(?:(\d+(?:\.\d+)?|[A-Za-z])|\(([^()]{1,200})\)|\{([^{}]{1,200})\})")


def clean(text: str) -> str:
    """One spelling for what looks the same: NFKC, ASCII digits, LaTeX for mathematical signs, no invisible characters.

    Superscripts, subscripts and vulgar fractions are written out first, since NFKC alone would turn 5² into 52. Lone
    surrogates become U+FFFD and control characters become spaces: neither may silently join what stood on its two
    sides.
    """
    if not text.isascii():
        text = _SUPERSCRIPT_RUN.sub(lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m[0]) + "}", text)
        text = _SUBSCRIPT_RUN.sub(lambda m: "_{" + "".join(_SUBSCRIPTS[c] for c in m[0]) + "}", text)
        text = text.translate(_FIRST)
        text = unicodedata.normalize("NFKC", text)
        text = text.translate(_SIGNS)
        text = _ROOT.sub(lambda m: r"\sqrt{" + (m[1] or m[2] or m[3]) + "}", text)
        text = _NOT_ASCII.sub(lambda m: _plain_character(m[0]), text)
    return _CONTROL.sub(" ", text)


@functools.lru_cache(maxsize=4096)
def _plain_character(character: str) -> str:
    if character < "\x7f":
        return character
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.digit(character))
    if category == "Cf" or "\ufe00" <= character <= "\ufe0f":
        return ""
    if category in ("Zs", "Zl", "Zp", "Cc"):
        return " "
    return "\ufffd" if category == "Cs" else character


_THINK_TAG = re.compile(r"<\s{0,3}(/?)\s{0,3}(?:think|thinking|thought|reasoning)\s{0,3}>", re.IGNORECASE)


def after_thinking(text: str) -> str:
    """The part of a response that is addressed to the reader.

    Everything up to the last closing tag is thinking (the opening one often stands in the prompt); so is everything
    from an opening tag that is never closed.
    """
    final_start, opened = 0, None
    for tag in _THINK_TAG.finditer(text):
        if tag[1]:
            final_start, opened = tag.end(), None
        elif opened is None:
            opened = tag.start()
    return text[final_start:opened]
