"""Whether a response keeps a form: thinking tags, one final box, tag blocks. No reward for right answers here."""

import re
from collections.abc import Sequence
from typing import Any

from reward_fns.errors import OptionError
from reward_fns.extract import MAX_RESPONSE_CHARS, extract_boxed
from reward_fns.result import Score

MAX_BLOCKS = 32


def thinking_then_answer(response: Any, *, opened_by_prompt: bool = False, max_thinking_share: float = 1.0) -> Score:
    """1.0 for one `<think>` block at the start, closed once, with text after it.

    Args:
        opened_by_prompt: the chat template already wrote `<think>`, so the response must not.
        max_thinking_share: largest part of the characters that may be thinking.
    """
    if not isinstance(response, str):
        return Score(0.0, "not_text")
    if len(response) > MAX_RESPONSE_CHARS:
        return Score(0.0, "too_long")
    opened, closed = response.count("<think>"), response.count("</think>")
    if closed != 1:
        return Score(0.0, "thinking_not_closed" if closed == 0 else "thinking_closed_twice")
    if opened != (0 if opened_by_prompt else 1):
        return Score(0.0, "thinking_opened_wrongly")
    thinking, _, rest = response.partition("</think>")
    if not opened_by_prompt and not thinking.lstrip().startswith("<think>"):
        return Score(0.0, "text_before_thinking")
    if not rest.strip():
        return Score(0.0, "no_answer_after_thinking")
    if len(thinking) > max_thinking_share * len(response):
        return Score(0.0, "thinking_too_long")
    return Score(1.0)


def one_final_box(response: Any) -> Score:
    r"""1.0 for exactly one box after the thinking, closed and not empty."""
    if not isinstance(response, str):
        return Score(0.0, "not_text")
    found = extract_boxed(response)
    if not found.text:
        return Score(0.0, found.reason)
    boxes = len(re.findall(r"\\(?:boxed|fbox)(?![A-Za-z])", response.rpartition("</think>")[2]))
    return Score(1.0, pred=found.text) if boxes == 1 else Score(0.0, "several_boxes", found.text)


def tag_blocks(response: Any, tags: Sequence[str]) -> Score:
    """1.0 when each tag opens once, closes once, in the order given, none inside another, and none is empty.

    Raises:
        OptionError: no tags, too many, or a tag that is not a plain name.
    """
    if not 0 < len(tags) <= MAX_BLOCKS or not all(re.fullmatch(r"[A-Za-z_][\w-]*", tag) for tag in tags):
        raise OptionError(f"expected 1 to {MAX_BLOCKS} plain tag names, got {list(tags)[:MAX_BLOCKS]}")
    if not isinstance(response, str):
        return Score(0.0, "not_text")
    position = 0
    for tag in tags:
        if response.count(f"<{tag}>") != 1 or response.count(f"</{tag}>") != 1:
            return Score(0.0, f"tag_count:{tag}")
        start = response.find(f"<{tag}>", position)
        end = response.find(f"</{tag}>", position)
        if start < 0 or end < start:
            return Score(0.0, f"tag_order:{tag}")
        if not response[start + len(tag) + 2 : end].strip():
            return Score(0.0, f"tag_empty:{tag}")
        position = end + len(tag) + 3
    return Score(1.0)
