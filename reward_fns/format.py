"""Whether a response keeps a form: one final box. No reward for right answers here."""

import re
from typing import Any

from reward_fns.extract import extract_boxed, scoped
from reward_fns.result import Score


def one_final_box(response: Any) -> Score:
    r"""1.0 for exactly one box after the thinking, closed and not empty."""
    if not isinstance(response, str):
        return Score(0.0, "not_text")
    extracted = extract_boxed(response)
    if not extracted.text:
        return Score(0.0, extracted.reason)
    boxes = len(re.findall(r"\\(?:boxed|fbox)(?![A-Za-z])", scoped(response)))
    return Score(1.0, pred=extracted.text) if boxes == 1 else Score(0.0, "several_boxes", extracted.text)
