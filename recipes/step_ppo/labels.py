"""Values of intermediate states from sampled completions, and probabilities over those values.

The value of a state is how many of its K completions reach the right answer, so a process reward model has K + 1
classes.
Source: LPR code, data/general.py, readers of "attempts" (V1 and V2).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipes.step_ppo.react import MIN_CONTENT, step_kind

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StateValue:
    """`value` hits among the completions, or None with the `reason` why the state is left out."""

    value: int | None
    reason: str = ""


def state_value(
    completions: Sequence[str],
    is_correct: Callable[[str], bool],
    *,
    require_distinct: bool = False,
    prefix: str | None = None,
) -> StateValue:
    """Count the completions that reach the right answer.

    Args:
        completions: the K texts sampled from behind the state.
        is_correct: whether one completion gives the right answer.
        require_distinct: leave the state out unless the K texts differ pairwise (ReClor in the LPR code).
        prefix: when given, the state is left out if its last step has fewer than 5 characters of content (ReClor).

    Returns:
        A value in 0..K. The state is left out when a completion is the empty string.

    Raises:
        ValueError: no completions.
    """
    if not completions:
        raise ValueError("a state needs at least one completion")
    if any(completion == "" for completion in completions):
        return StateValue(None, "empty_completion")
    if require_distinct and len(set(completions)) < len(completions):
        return StateValue(None, "repeated_completion")
    if prefix is not None and _short_last_step(prefix):
        return StateValue(None, "short_last_step")
    return StateValue(sum(map(bool, map(is_correct, completions))))


def _short_last_step(prefix: str) -> bool:
    last = next((line for line in reversed(prefix.split("\n")) if line.strip()), "")
    kind = step_kind(last)
    return len((last[len(kind) + 1 :] if kind else last).strip()) < MIN_CONTENT


def trajectory_value(correct: bool, num_completions: int) -> int:
    """Label a complete trajectory: every completion of a right one would be right, of a wrong one none."""
    return num_completions if correct else 0


def class_probability(probabilities: "Tensor", classes: Sequence[int] = (2, 3)) -> "Tensor":
    """Compute the probability that the value lies in `classes`.

    Args:
        probabilities: (..., K + 1), softmax over the values 0..K.
        classes: values counted as good; (2, 3) is "at least two of three completions succeed", the LPR code's choice.

    Returns:
        (...)

    Raises:
        ValueError: a class outside 0..K, or one named twice.
    """
    classes = list(classes)
    if not classes or len(set(classes)) < len(classes) or not all(0 <= c < probabilities.shape[-1] for c in classes):
        raise ValueError(f"classes {classes} must be distinct values in 0..{probabilities.shape[-1] - 1}")
    return probabilities[..., classes].sum(-1)
