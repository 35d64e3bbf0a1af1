"""Intermediate states: prefixes of sampled trajectories from which completions will be drawn.

Source: sample_react_inter_states_v2.0.py and _v2.3.py of the LPR code. Differences, argued in REFERENCE.md: draws are
seeded per trajectory, and shards lose no remainder.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from recipes.step_ppo.react import step_kind
from recipes.step_ppo.steps import StepStyle


@dataclass(frozen=True)
class StateSampling:
    """Which prefixes become states.

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
        found = [(i, "Line") for i, line in enumerate(lines) if line.strip()]
    else:
        found = [(i, kind) for i, line in enumerate(lines) if (kind := step_kind(line)) is not None]
    return found[:-1]


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
