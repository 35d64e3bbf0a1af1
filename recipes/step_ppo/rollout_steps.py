"""Find where the steps of a rollout end on its token ids, or why it has none."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from recipes.step_ppo.steps import Decoder, StepStyle, decode_response, generated_tokens, segment_response


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
