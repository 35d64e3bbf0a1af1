"""The gold answers that a dataset's `ground_truth` holds."""

import math
import numbers
from typing import Any

from reward_fns.extract import MAX_ANSWER_CHARS, extract_boxed
from reward_fns.text import clean

MAX_GOLD_CHARS = 100_000


def gold_answers(ground_truth: Any) -> tuple[tuple[str, ...], str]:
    r"""The accepted answers and, when there is none, the problem.

    A string is bare LaTeX, a worked solution with a `\boxed{}`, or ends in `#### answer`. A number is taken as written.
    A list, tuple or array holds alternatives, each of which is right.
    """
    if not isinstance(ground_truth, str | list | tuple) and callable(getattr(ground_truth, "tolist", None)):
        ground_truth = ground_truth.tolist()
    if isinstance(ground_truth, list | tuple):
        found = [_one(item) for item in ground_truth]
        answers = tuple(dict.fromkeys(answer for answer, _ in found if answer))
        return answers, "" if answers else (found[0][1] if found else "gold_missing")
    answer, problem = _one(ground_truth)
    return (answer,) if answer else (), problem


def _one(raw: Any) -> tuple[str, str]:
    if raw is None:
        return "", "gold_missing"
    if isinstance(raw, bool):
        return str(raw), ""
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
    return text, "" if text else "gold_missing"
