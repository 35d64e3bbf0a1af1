"""Prompt and response as token ids, the same in every stage: plain text, no chat template, BOS where the tokenizer
adds one."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from recipes.step_ppo.steps import covering_tokens


@dataclass(frozen=True)
class EncodedTrajectory:
    """`ids` of prompt and response, the first `prompt_length` being the prompt's, and the `ends` asked for as
    positions in `ids`."""

    ids: list[int]
    prompt_length: int
    ends: list[int]


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Ids of a prompt as the rollout sees it. An EOS that the tokenizer may append is left off."""
    return _encode(tokenizer, prompt)[0]


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    if not tokenizer.is_fast:
        raise ValueError(
            f"{type(tokenizer).__name__} gives no character offsets: use the fast version of the tokenizer"
        )
    encoding = tokenizer(text, return_offsets_mapping=True)
    ids, offsets = list(encoding["input_ids"]), [tuple(span) for span in encoding["offset_mapping"]]
    while ids and offsets[-1] == (0, 0) and len(ids) > 1 and ids[-1] in tokenizer.all_special_ids:
        ids.pop()
        offsets.pop()
    return ids, offsets


def encode_trajectory(
    tokenizer: PreTrainedTokenizerBase, prompt: str, response: str, ends: Sequence[int]
) -> EncodedTrajectory:
    """Encode `prompt` + space + `response`.

    Args:
        response: cleaned text, without the space that follows the prompt's tail.
        ends: ascending character positions in `response`, each one past the last character of a step.

    Raises:
        ValueError: the tokenizer merges the last token of the prompt with the response, so that a rollout could not
            have started from this prompt; or it drops a character that a step ends with.
    """
    prompt_ids = encode_prompt(tokenizer, prompt)
    ids, offsets = _encode(tokenizer, f"{prompt} {response}")
    if ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError(
            f"the tokenizer merges the end of the prompt {prompt[-20:]!r} with the response {response[:20]!r}: "
            "end the prompts on a token border"
        )
    start = len(prompt) + 1
    return EncodedTrajectory(ids, len(prompt_ids), covering_tokens(offsets, [start + end for end in ends]))
