"""The gold answers that a dataset's `ground_truth` holds, and whether a response can be judged against them."""

import json
import math
import numbers
import re
from collections.abc import Callable
from typing import Any

from reward_fns.answer import is_word, letter_of, normal_form
from reward_fns.equivalence import NeedsAlgebra
from reward_fns.extract import MAX_ANSWER_CHARS, bounded, extract_boxed
from reward_fns.numerals import read_number
from reward_fns.shapes import MAX_ITEMS, is_related, shape_of, value_side
from reward_fns.text import clean
from reward_fns.units import split_unit

MAX_GOLD_CHARS = 100_000
MAX_GOLD_WORDS = 10
# Golds of published data that no answer can equal: a tag, a list or record as text, a sentence, several in one text.
_NO_ANSWER = re.compile(
    r"</?[A-Za-z_]+>|^\s*\[\s*[\"']|^\s*\{\s*[\"'][^{}]*:|\banswer\s*(?:is|:|=)|\bsolution\s*:"
    r"|\b(?:therefore|thus|hence|because|we (?:have|get|find|obtain))\b|^[^|\\(){}\[\]]+(?:\|[^|\\(){}\[\]]+)+$",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")


def gold_answers(ground_truth: Any) -> tuple[tuple[str, ...], str]:
    r"""The accepted answers and, when there is none, the problem.

    A string is bare LaTeX, a worked solution with a `\boxed{}`, or ends in `#### answer`. A number is taken as written.
    A list, tuple or array holds alternatives, each of which is right; a list of one that was written as text is read.
    """
    if not isinstance(ground_truth, str | list | tuple) and callable(getattr(ground_truth, "tolist", None)):
        ground_truth = ground_truth.tolist()
    if isinstance(ground_truth, list | tuple):
        readings = [_one(item) for item in ground_truth]
        answers = tuple(dict.fromkeys(answer for answer, _ in readings if answer))
        return answers, "" if answers else (readings[0][1] if readings else "gold_missing")
    answer, problem = _one(ground_truth)
    return (answer,) if answer else (), problem


def _one(raw: Any) -> tuple[str, str]:
    if raw is None:
        return "", "gold_missing"
    if isinstance(raw, bool):
        return str(raw), ""
    if isinstance(raw, int) and raw.bit_length() > 4 * MAX_ANSWER_CHARS:
        return "", "gold_unparsable"  # Python writes no number of more than 4,300 digits
    if isinstance(raw, numbers.Real):
        if isinstance(raw, float) and not math.isfinite(raw):
            return "", "gold_missing"
        return (repr(float(raw)) if isinstance(raw, float) else str(raw)[: MAX_ANSWER_CHARS + 1]), ""
    if not isinstance(raw, str):
        return "", "gold_unparsable"
    text = clean(raw[: MAX_GOLD_CHARS + 1]).strip()
    if not text:
        return "", "gold_missing"
    if len(text) > MAX_GOLD_CHARS:
        return "", "gold_unparsable"
    if "\\boxed" in text or "\\fbox" in text:
        boxed = extract_boxed(text, "anywhere")
        return boxed.text, "" if boxed.text else "gold_unparsable"
    if "####" in text:
        text = text.rpartition("####")[2].strip()
    if text.startswith(('["', "['")):
        text = _only_item(text)
    if _NO_ANSWER.search(text) or len(_WORD.findall(text)) > MAX_GOLD_WORDS:
        return "", "gold_unparsable"
    return text, "" if text else "gold_missing"


def _only_item(text: str) -> str:
    """The item of a list of one text that was written as JSON or by Python; else the text as it is."""
    try:
        items = json.loads(text.replace("'", '"'))
    except ValueError:
        return text
    return items[0].strip() if isinstance(items, list) and len(items) == 1 and isinstance(items[0], str) else text


def refuse_reading(text: str) -> bool:
    """Stand in for the `reads` of `gold_problem` where no algebra may run."""
    raise NeedsAlgebra


def gold_problem(gold: str, reads: Callable[[str], bool]) -> str:
    """Why no response could be judged against this gold answer; "" when it is sound.

    Args:
        reads: whether algebra can work with an expression, or at least compare it as written; asked only where text,
            words and numbers do not suffice.
    """
    text = normal_form(gold)
    if not text:
        return "gold_missing"
    if bounded(text).reason:
        return "gold_unparsable"
    shape = shape_of(text)
    if len(shape.items) > MAX_ITEMS:
        return "gold_unparsable"
    return "" if all(_is_sound(item, reads) for item in shape.items) else "gold_unparsable"


def _is_sound(item: str, reads: Callable[[str], bool]) -> bool:
    if not item:
        return False
    inner = shape_of(item)
    if inner.kind != "one":
        return all(_is_sound(part, reads) if part != item else reads(part) for part in inner.items)
    value = value_side(item) or item
    if letter_of(value) is not None or is_word(value):
        return True
    body = split_unit(value).body
    return read_number(body) is not None or reads(item if is_related(item) else body)
