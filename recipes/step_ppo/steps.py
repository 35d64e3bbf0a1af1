"""Reasoning steps of a response: where each one ends, as a character and as a token.

The text definition is the LPR code's (data/general.py, `extract_react_ending_positions_v2`): a line that opens with
a step label starts a step, blank and continuation lines join it, a step ends with its last non-blank line, and a
step with fewer than 5 characters of content is none (except the first thought).

On tokens, a step ends at the token that covers the last character of that line. Tokenizers often merge the line
break into that token ("." and "\n" become one), so cutting the text before the break and tokenizing it again, as
the LPR code does, can name a token that was never generated.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tokenizers.decoders import DecodeStream

# The ReAct format: a trajectory is written as lines `Thought i: ...`, `Action i: ...`, `Observation i: ...` and ends
# with `Action n: Finish[The answer is X.]`. The label of the first thought stands at the end of the prompt, so a
# response starts in the middle of `Thought 1:`. Source: construct_dpo_data_from_react_response.py (rule 1.0) and
# _v1.1.py (rule 1.1) of the dpo-trajectory-reasoning repository, the code of "Learning Planning-based Reasoning by
# Trajectories Collection and Process Reward Synthesizing" (arXiv 2402.00658), called "the LPR code" in this recipe.
STEP_KINDS = ("Thought", "Action", "Observation")
FIRST_STEP = "Thought 1:"
FINISH = "Finish[The answer is"
NEXT_QUESTION = "Context:\n"
MIN_CONTENT = 5

CleaningRules = Literal["1.0", "1.1"]


def step_kind(line: str) -> str | None:
    """Return `Thought`, `Action` or `Observation` when `line` opens a step, else None."""
    return next((kind for kind in STEP_KINDS if line.startswith(f"{kind} ")), None)


def is_finish(line: str) -> bool:
    """Whether `line` is the action that gives the answer."""
    return line.startswith("Action ") and FINISH in line


def clean_response(response: str, *, rules: CleaningRules = "1.0", min_lines: int = 0) -> str | None:
    """Cut a response after its final action, or refuse it.

    Anything from a hallucinated next question (`Context:`) on is dropped first. A response is refused (None) unless
    exactly one line is a finishing action, and when the cleaned text has fewer than `min_lines` lines. Rule 1.1 also
    joins continuation lines to their step and drops blank lines and steps with fewer than 5 characters after their
    label.

    Args:
        response: text as sampled, from behind `Thought 1:`.
        rules: `"1.0"` (LogiQA-v2 in the LPR code) or `"1.1"` (ReClor).
        min_lines: smallest number of lines kept (`min_step` in the LPR code).

    Raises:
        ValueError: unknown `rules`.
    """
    if rules not in ("1.0", "1.1"):
        raise ValueError(f"unknown cleaning rules {rules!r}: expected '1.0' or '1.1'")
    lines = response.split(NEXT_QUESTION)[0].split("\n")
    if sum(map(is_finish, lines)) != 1:
        return None
    lines = lines[: next(i for i, line in enumerate(lines) if is_finish(line)) + 1]
    if rules == "1.1":
        lines = _joined_steps(lines)
        if not lines or not is_finish(lines[-1]):
            return None
    cleaned = "\n".join(lines).strip()
    return cleaned if len(cleaned.split("\n")) >= min_lines else None


def _joined_steps(lines: list[str]) -> list[str]:
    steps: list[str] = []
    for line in lines:
        kind = step_kind(line)
        if kind is None:
            if not line.strip():
                continue
            if steps:
                steps[-1] += " " + line
                continue
        # The LPR code takes the text up to a second occurrence of the label, so a step that only repeats it is empty.
        elif len(line.split(f"{kind} ")[1]) < MIN_CONTENT:
            continue
        steps.append(line)
    return steps


StepStyle = Literal["react", "lines"]


@dataclass(frozen=True)
class Step:
    """One step. `start` and `end` are character positions, `end` one past the last character of its last non-blank
    line."""

    kind: str
    start: int
    end: int


class Decoder(Protocol):
    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str: ...


def segment(text: str, style: StepStyle = "react") -> list[Step]:
    """Split a whole trajectory into steps.

    Args:
        text: for `react` a text that contains a line starting with `Thought 1:` (what stands before it is ignored);
            for `lines` any text, each non-blank line being a step of kind `Line`.

    Returns:
        Steps in order; empty when there is none.

    Raises:
        ValueError: unknown `style`.
    """
    if style == "lines":
        return [Step("Line", start, start + len(line)) for line, start in _lines(text) if line.strip()]
    if style != "react":
        raise ValueError(f"unknown step style {style!r}: expected 'react' or 'lines'")
    steps: list[Step] = []
    for line, start in _lines(text):
        end = start + len(line)
        kind = step_kind(line)
        if kind is not None and (steps or line.startswith(FIRST_STEP)):
            steps.append(Step(kind, start, end))
        elif kind is None and line.strip() and steps:
            steps[-1] = Step(steps[-1].kind, steps[-1].start, end)
    return [step for i, step in enumerate(steps) if _has_content(text, step)]


def segment_response(response: str, style: StepStyle = "react") -> list[Step]:
    """Split a response as generated into steps, in the response's own character positions.

    The label of the first thought belongs to the prompt, so the first step starts before position 0; its `end` is at
    most 0 when the first thought is empty (the response opens with a line break).
    """
    lead = FIRST_STEP if style == "react" else ""
    return [Step(s.kind, s.start - len(lead), s.end - len(lead)) for s in segment(lead + response, style)]


def _lines(text: str) -> Iterator[tuple[str, int]]:
    start = 0
    for line in text.split("\n"):
        yield line, start
        start += len(line) + 1


def _has_content(text: str, step: Step) -> bool:
    content = text[step.start + len(step.kind) + 1 : step.end].strip()
    return len(content) >= MIN_CONTENT or text.startswith(FIRST_STEP, step.start)


def covering_tokens(offsets: Sequence[tuple[int, int]], ends: Sequence[int]) -> list[int]:
    """Find the token that covers the last character before each position in `ends`.

    Args:
        offsets: (T,) character span (start, stop) of each token, as a fast tokenizer returns them; tokens without
            characters have an empty span. Where several tokens share a character (bytes of one symbol), the last
            counts.
        ends: ascending character positions, each one past the character of interest.

    Returns:
        Token index per end.

    Raises:
        ValueError: a character that no token covers (a truncated or normalised text).
    """
    tokens = [-1] * len(ends)
    for index, (start, stop) in enumerate(offsets):
        for i in range(bisect_right(ends, start), bisect_right(ends, stop)):
            tokens[i] = index
    if -1 in tokens:
        missing = ends[tokens.index(-1)]
        raise ValueError(f"no token covers character {missing - 1}: the offsets do not belong to this text")
    return tokens


def generated_tokens(tokenizer: Decoder, ids: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Like `covering_tokens`, for generated ids, which have no offsets: the first token after which the text up to
    `end` is complete.

    Args:
        tokenizer: decoder of `ids`.
        ids: (T,) response token ids.
        ends: ascending character positions in `decode_response(tokenizer, ids)`.
    """
    ids = list(ids)
    text = decode_response(tokenizer, ids)
    if (lengths := _decoded_lengths(tokenizer, ids, text)) is not None:
        return [bisect_left(lengths, end) for end in ends]
    tokens: list[int] = []
    for end in ends:
        places = range(tokens[-1] if tokens else 0, len(ids))
        tokens.append(next(i for i in places if decode_response(tokenizer, ids[: i + 1]).startswith(text[:end])))
    return tokens


def _decoded_lengths(tokenizer: Decoder, ids: Sequence[int], text: str) -> list[int] | None:
    """How many characters of `text` are written after each token; None where that cannot be read in a stream.

    Where a tokenizer writes rare characters as bytes, the decoded prefixes do not tell: bytes that end in the middle of
    a character spoil all that stand before them in a row.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    stream, written, lengths = DecodeStream(skip_special_tokens=True), "", []
    try:
        for token in ids:
            written += stream.step(backend, token) or ""
            lengths.append(len(written))
    except Exception:  # the library's own type for bytes that make no character
        return None
    if lengths and text.startswith(written):
        # Bytes at the end that make no character.
        lengths[-1] = len(text)
        return lengths
    return None


def decode_response(tokenizer: Decoder, ids: Sequence[int]) -> str:
    """Decode generated ids, without special tokens and without cosmetic changes to spaces."""
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
