"""What a judge is shown and how its verdict is read, so that no text under judgement can pass for its verdict.

The verdict must carry a random word drawn after the response was written: a verdict forged inside the response does not
have it.
"""

import re
import secrets
from typing import Any

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


def read_verdict(reply: Any, word: str, pattern: str) -> str | None:
    """The one verdict in a judge's reply: the last line reads `<word>: <verdict>`, and no other line says otherwise.

    Returns:
        The verdict, or None when it is missing, malformed or contradicted.
    """
    if not isinstance(reply, str) or len(reply) > MAX_REPLY_CHARS:
        return None
    lines = [line.strip().strip("*`").strip() for line in reply.strip().splitlines()]
    stated = [match[1] for line in lines if (match := re.fullmatch(rf"{word}\s*:\s*({pattern})", line))]
    if not stated or len(set(stated)) != 1:
        return None
    return stated[0] if re.match(rf"{word}\s*:", lines[-1]) else None
