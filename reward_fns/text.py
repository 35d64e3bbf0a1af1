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
        # Invisible operators: dropped, they would join two numbers.
        "\u2062": r"\cdot ",
        "\u2063": ",",
        "\u2064": "+",
        # What is shown from here on runs from right to left: the text is not what a reader sees.
        **dict.fromkeys("\u202b\u202d\u202e\u2067\u2068", "\ufffd"),
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


# What opens and what closes thoughts: tags of DeepSeek, Qwen, Seed and others; Magistral; Kimi; Command A, Sky-T1.
_TAGS = r"(?:seed:)?think(?:ing)?|thoughts?|reason(?:ing)?|analysis|scratchpad|reflection|inner_monologue"
_TOKENS = "think|thinking|thought"
_OPEN = rf"<\s{{0,3}}(?:{_TAGS})\s{{0,3}}>|\[THINK\]|◁think▷|<\|(?:(?:start|begin)(?:_of)?_)?(?:{_TOKENS})\|>"
_CLOSE = rf"<\s{{0,3}}/\s{{0,3}}(?:{_TAGS})\s{{0,3}}>|\[/THINK\]|◁/think▷|<\|(?:/|end_(?:of_)?)(?:{_TOKENS})\|>"
_THOUGHT = re.compile(rf"(?P<open>{_OPEN})|(?P<close>{_CLOSE})", re.IGNORECASE)
# Channels of gpt-oss, with their tokens and where a decoder has left these out.
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)[^<]{0,80}<\|message\|>")
_CHANNEL_END = re.compile(r"<\|(?:end|return|start|call)\|>")
_BARE_CHANNEL = re.compile(r"\s*(?:analysis|commentary)(?![a-z\s:,.])")
_BARE_FINAL = "assistantfinal"


def after_thinking(text: str) -> str:
    """The part of a response that is addressed to the reader.

    Everything up to the last closing mark is thinking (the opening one often stands in the prompt); so is everything
    from an opening mark that is never closed. Of channels the last one called final counts, and nothing where there is
    none.
    """
    channels = list(_CHANNEL.finditer(text))
    if channels:
        final = next((match.end() for match in reversed(channels) if match[1] == "final"), None)
        if final is None:
            return ""
        text = _CHANNEL_END.split(text[final:], maxsplit=1)[0]
    elif _BARE_CHANNEL.match(text):
        text = text.rpartition(_BARE_FINAL)[2] if _BARE_FINAL in text else ""
    elif text.startswith(_BARE_FINAL.removeprefix("assistant")) and text[5:6].isupper():
        text = text[5:]
    final_start, opened = 0, None
    for mark in _THOUGHT.finditer(text):
        if mark["close"]:
            final_start, opened = mark.end(), None
        elif opened is None:
            opened = mark.start()
    return text[final_start:opened]


_COMMENT = re.compile(
    r"<!--(?:(?!-->).)*(?:-->)?|(?m:^)[ \t]*%[^\n]*|~~[^~\n]+~~|<(s|del|strike)>(?:(?!</).){0,2000}</\1>", re.DOTALL
)
_HIDING = re.compile(r"\\(?:[hv]?phantom|sout|xout|st|cancel|[bx]cancel|textcolor\s*\{white\})\s*(?=\{)")


def visible(text: str) -> str:
    r"""A text without what a reader does not see, or sees struck out: comments, `~~...~~`, and boxes in `\phantom`,
    `\sout` and the like."""
    if "<" in text or "%" in text or "~~" in text:
        text = _COMMENT.sub(" ", text)
    parts, position = [], 0
    for match in _HIDING.finditer(text) if "boxed" in text else ():
        end = closing_brace(text, match.end()) if match.start() >= position else None
        if end is not None and "boxed" in text[match.end() : end]:
            parts += [text[position : match.start()], " "]
            position = end + 1
    return "".join([*parts, text[position:]])


def closing_brace(text: str, opening: int) -> int | None:
    r"""Position of the brace that closes the one at `opening`; `\{`, `\}` and `\\` are passed over as pairs."""
    depth, position = 0, opening
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 2
            continue
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None
