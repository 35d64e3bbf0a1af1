"""Values of intermediate states from sampled completions, and probabilities over those values.

The value of a state is how many of its K completions reach the right answer, so a process reward model has K + 1
classes.
Source: LPR code, data/general.py, readers of "attempts" (V1 and V2).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recipes.step_ppo.steps import MIN_CONTENT, StepStyle, step_kind

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StateSampling:
    """Which prefixes of sampled trajectories become states, from which completions will be drawn.

    Source: sample_react_inter_states_v2.0.py and _v2.3.py of the LPR code. Differences, argued in REFERENCE.md: draws
    are seeded per trajectory, and shards lose no remainder.

    ratio: probability of each remaining step. ratio_s: share of leading steps never used. ratio_e: share after which
    none is used. Both bounds are floors of share times number of steps. drop_kinds: kinds of step that are drawn but
    not kept.
    """

    ratio: float = 0.4
    ratio_s: float = 0.2
    ratio_e: float = 1.0
    drop_kinds: tuple[str, ...] = ()
    style: StepStyle = "react"

    def __post_init__(self) -> None:
        for name in ("ratio", "ratio_s", "ratio_e"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must lie in [0, 1], found {value}")


@dataclass(frozen=True)
class State:
    """A prefix of a response, up to and including one step's line, and the `rest` of the response, which decides on
    which token the prefix ends. `step` counts the steps of the response from 0."""

    step: int
    kind: str
    prefix: str
    rest: str


def state_lines(response: str, style: StepStyle = "react") -> list[tuple[int, str]]:
    """List line number and kind of the steps that may become states.

    The first thought is none of them (its label stands in the prompt), nor is the final action.
    """
    lines = response.split("\n")
    if style == "lines":
        steps = [(i, "Line") for i, line in enumerate(lines) if line.strip()]
    else:
        steps = [(i, kind) for i, line in enumerate(lines) if (kind := step_kind(line)) is not None]
    return steps[:-1]


def sample_states(response: str, sampling: StateSampling, rng: random.Random) -> list[State]:
    """Draw the states of one cleaned response.

    Every eligible step costs one draw from `rng`, whether or not its kind is dropped, so the filter does not move
    the others.
    """
    lines = response.split("\n")
    steps = state_lines(response, sampling.style)
    first, stop = int(len(steps) * sampling.ratio_s), int(len(steps) * sampling.ratio_e)
    states = []
    for step in range(first, stop):
        line, kind = steps[step]
        if rng.random() < sampling.ratio and kind not in sampling.drop_kinds:
            prefix = "\n".join(lines[: line + 1])
            states.append(State(step, kind, prefix, response[len(prefix) :]))
    return states


def trajectory_rng(seed: int, question_id: str, response_index: int) -> random.Random:
    """Make the random stream of one trajectory, the same whatever the order or sharding of the questions."""
    return random.Random(f"{seed}/{question_id}/{response_index}")


def shard_bounds(count: int, num_shards: int) -> list[tuple[int, int]]:
    """Split 0..count into `num_shards` half-open ranges in order, sizes differing by at most one.

    Raises:
        ValueError: fewer than one shard.
    """
    if num_shards < 1:
        raise ValueError(f"num_shards must be at least 1, found {num_shards}")
    edges = [count * i // num_shards for i in range(num_shards + 1)]
    return list(zip(edges, edges[1:], strict=False))


def state_records(trajectory: dict, sampling: StateSampling, seed: int) -> Iterator[dict]:
    """Make the records of the states of one question's trajectories (a record of `collect`)."""
    for index, response in enumerate(trajectory["responses"]):
        rng = trajectory_rng(seed, trajectory["id"], index)
        for state in sample_states(response["text"], sampling, rng):
            yield {
                "key": f"{trajectory['id']}/{index}/{state.step}",
                "id": trajectory["id"],
                "response_index": index,
                "step": state.step,
                "kind": state.kind,
                "prefix": state.prefix,
                "rest": state.rest,
            }


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
