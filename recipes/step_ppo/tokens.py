"""Prompt and response as token ids, the same in every stage.

A text (ReAct) is taken as it stands, with BOS where the tokenizer adds one, and its response follows a space. Messages
(`step_style=lines`) go through the chat template, and the response follows at once; a model without a template gets
the text of a single message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipes.step_ppo.steps import (
    Decoder,
    StepStyle,
    covering_tokens,
    decode_response,
    generated_tokens,
    segment_response,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class RolloutSteps:
    """Token positions of the step ends and kinds of the steps; `malformed` is "" or the reason why there are none to
    reward."""

    ends: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    eos_index: int | None = None
    malformed: str = ""


def rollout_steps(
    tokenizer: Decoder,
    ids: Sequence[int],
    eos_ids: Collection[int],
    *,
    style: StepStyle = "react",
    score_truncated: bool = False,
) -> RolloutSteps:
    """Find the steps of a response.

    Args:
        ids: (T,) response token ids, without padding.
        eos_ids: ids that end a response.
        score_truncated: whether a response that was cut by the length limit has steps; if not, it is malformed.
    """
    eos_index = len(ids) - 1 if ids and ids[-1] in eos_ids else None
    if len(ids) == (0 if eos_index is None else 1):
        return RolloutSteps(eos_index=eos_index, malformed="empty")
    if eos_index is None and not score_truncated:
        return RolloutSteps(malformed="truncated")
    steps = segment_response(decode_response(tokenizer, ids), style)
    if not steps:
        return RolloutSteps(eos_index=eos_index, malformed="no_step")
    if steps[0].end <= 0:
        return RolloutSteps(eos_index=eos_index, malformed="step_end_in_prompt")
    ends = generated_tokens(tokenizer, ids, [step.end for step in steps])
    if max(Counter(ends).values()) > 1:
        return RolloutSteps(eos_index=eos_index, malformed="merged_steps")
    return RolloutSteps(tuple(ends), tuple(step.kind for step in steps), eos_index)


Prompt = str | list[dict[str, str]]
"""A plain text, or the messages of a conversation."""


@dataclass(frozen=True)
class EncodedTrajectory:
    """`ids` of prompt and response, the first `prompt_length` being the prompt's, and the `ends` asked for as
    positions in `ids`."""

    ids: list[int]
    prompt_length: int
    ends: list[int]


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder or Hub id.

    Raises:
        ValueError: there is none, as when `name` is only what an endpoint calls its model.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer found at {name!r}: pass its folder or id with --tokenizer ({error})") from error


def prompt_of(messages: Sequence[Mapping[str, str]], style: str) -> Prompt:
    """The prompt that a row's messages make.

    Raises:
        ValueError: several messages where the method writes plain text, which has no place for roles.
    """
    if style == "lines":
        return [dict(message) for message in messages]
    if len(messages) != 1:
        raise ValueError(
            f"the prompt has {len(messages)} messages and step_style={style} takes plain text: give one message, or "
            "set step_style=lines for a chat model"
        )
    return messages[0]["content"]


def render(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> tuple[str, str]:
    """The prompt's text, and what stands between it and the response.

    Raises:
        ValueError: several messages, and no chat template.
    """
    if isinstance(prompt, str):
        return prompt, " "
    if tokenizer.chat_template:
        return tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True), ""
    return render(tokenizer, prompt_of(prompt, "plain"))


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """Encode a prompt as the rollout sees it, without an EOS that the tokenizer may append."""
    text, space = render(tokenizer, prompt)
    return _encode(tokenizer, text, bos=bool(space))[0]


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, bos: bool) -> tuple[list[int], list[tuple[int, int]]]:
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} gives no character offsets: use the fast version of the tokenizer"
        )
    # A chat template writes its own BOS.
    encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=bos)
    ids, offsets = list(encoding["input_ids"]), [tuple(span) for span in encoding["offset_mapping"]]
    while ids and offsets[-1] == (0, 0) and len(ids) > 1 and ids[-1] in tokenizer.all_special_ids:
        ids.pop()
        offsets.pop()
    return ids, offsets


def encode_state(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, prefix: str, rest: str) -> list[int]:
    """Encode a state as its completions continue it: prompt and response up to the token that covers the prefix's last
    character.

    Tokenizers that write a full stop and the line break behind it as one token (byte-level BPE such as Qwen's) have the
    policy produce both at once. A prompt that ends between them puts the policy where it never was, and its completions
    say nothing about the trajectory. So the cut falls on a token border of the whole response; the line break belongs
    to the state where the tokenizer merges it, and is the completion's first token where it does not (SentencePiece,
    for which this is the original's cut).

    Args:
        prompt: ends with the tail of the recipe's prompts.
        prefix: the response up to and including the last line of the state, without the space that joins it.
        rest: what the response goes on with; it decides on which token the prefix ends.

    Raises:
        ValueError: as `encode_trajectory`.
    """
    encoded = encode_trajectory(tokenizer, prompt, prefix + rest, [len(prefix)])
    return encoded.ids[: encoded.ends[0] + 1]


def encode_trajectory(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, response: str, ends: Sequence[int]
) -> EncodedTrajectory:
    """Encode a prompt and the response that continues it.

    Args:
        response: cleaned text, without the space that follows the prompt's tail.
        ends: ascending character positions in `response`, each one past the last character of a step.

    Raises:
        ValueError: the tokenizer merges the last token of the prompt with the response, so that a rollout could not
            have started from this prompt; or it drops a character that a step ends with.
    """
    prompt_ids = encode_prompt(tokenizer, prompt)
    text, space = render(tokenizer, prompt)
    ids, offsets = _encode(tokenizer, f"{text}{space}{response}", bos=bool(space))
    if ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError(
            f"the tokenizer merges the end of the prompt {text[-20:]!r} with the response {response[:20]!r}: "
            "end the prompts on a token border"
        )
    start = len(text) + len(space)
    return EncodedTrajectory(ids, len(prompt_ids), covering_tokens(offsets, [start + end for end in ends]))
