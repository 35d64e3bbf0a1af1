"""What a judge is shown and how its verdict is read, so that no text under judgement can pass for its verdict.

The verdict must carry a random word drawn after the response was written: a verdict forged inside the response does not
have it.
"""

import re
import secrets
from typing import Any

from reward_fns.text import after_thinking

MAX_REPLY_CHARS = 200_000


def draw_word() -> str:
    """A random word, drawn after the response was written."""
    return f"VERDICT-{secrets.token_hex(6)}"


def mark(name: str, text: str, word: str) -> str:
    """A text between marks that it cannot contain."""
    tag = f"{name} {word.removeprefix('VERDICT-')[::-1]}"
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return f"<<<{tag}\n{clean}\n{tag}>>>"


def shorten(text: str, limit: int) -> str:
    """A text cut in the middle: the question is at its start, the answer at its end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def read_verdict(reply: Any, word: str, pattern: str, out_of: float | None = None) -> str | None:
    """The one verdict in a judge's reply, `<word>: <verdict>` in whatever dress: bold, fenced, with a closing sentence.

    Args:
        pattern: of a verdict, whose case does not matter.
        out_of: the highest grade, which may stand behind the verdict, as in `7/10`.

    Returns:
        The verdict in capitals, or None when it is missing, malformed or contradicted.
    """
    if not isinstance(reply, str) or len(reply) > MAX_REPLY_CHARS:
        return None
    text = re.sub(r"[*`_]|\\boxed|[{}$]", "", after_thinking(reply))
    denominator = "" if out_of is None else rf"(?:\s*(?:/|out of)\s*{out_of:g}(?!\d))?"
    stated = re.findall(
        rf"{word}[ \t]*[:=-]?\s*({pattern})(?![\w.]*\d|[\w-]){denominator}(?!\s*/)", text, re.IGNORECASE
    )
    if text.count(word) != len(stated):
        return None
    verdicts = {verdict.upper() if not re.search(r"\d", verdict) else f"{float(verdict):g}" for verdict in stated}
    return stated[-1].upper() if len(verdicts) == 1 else None
