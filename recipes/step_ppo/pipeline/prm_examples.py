"""Training examples of the process reward model: one trajectory with all its labelled prefixes.

The LPR code makes one sequence of every labelled prefix. For a causal model, the logits at the last token of a
prefix do not depend on what follows, so one pass over the whole trajectory reads them all.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from recipes.step_ppo.labels import trajectory_value
from recipes.step_ppo.pipeline.data import Question
from recipes.step_ppo.tokens import Prompt


@dataclass(frozen=True)
class PRMExample:
    """`labels` maps character positions in `response` (one past the last character of a prefix) to hits."""

    key: str
    id: str
    prompt: Prompt
    response: str
    labels: tuple[tuple[int, int], ...]


def prm_examples(
    questions: Mapping[str, Question],
    trajectories: Iterable[dict],
    values: Iterable[dict],
    *,
    num_completions: int,
    whole_trajectories: bool = True,
) -> Iterator[PRMExample]:
    """Join trajectories with the values of their states.

    Only questions that have at least one valued state give examples: the others were not part of the PRM's sample.

    Args:
        trajectories: records of `collect`. values: records of `complete`.
        num_completions: K; a whole trajectory is labelled K when right and 0 when wrong.
        whole_trajectories: whether to add that label.

    Raises:
        ValueError: a value of another K, a state that is no prefix of its trajectory, or an unknown question.
    """
    labels: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    known: set[str] = set()
    for record in values:
        if record["num_completions"] != num_completions:
            raise ValueError(
                f"{record['key']} was valued with {record['num_completions']} completions, not {num_completions}"
            )
        if record["value"] is not None:
            if record["value"] > num_completions:
                raise ValueError(f"{record['key']} has {record['value']} hits of {num_completions} completions")
            known.add(record["id"])
            labels[record["id"], record["response_index"]][record["prefix_length"]] = record["value"]
    for trajectory in trajectories:
        if trajectory["id"] not in known:
            continue
        for index, response in enumerate(trajectory["responses"]):
            text = response["text"]
            found = dict(labels.get((trajectory["id"], index), {}))
            if any(f"{text}\n"[length : length + 1] != "\n" for length in found):
                raise ValueError(
                    f"response {index} of question {trajectory['id']} has a state that ends at no line of it: other "
                    "trajectories?"
                )
            if whole_trajectories:
                found.setdefault(len(text), trajectory_value(response["correct"], num_completions))
            if found:
                if trajectory["id"] not in questions:
                    raise ValueError(f"the records name question {trajectory['id']}, which the data does not hold")
                prompt = questions[trajectory["id"]].prompt
                key = f"{trajectory['id']}/{index}"
                yield PRMExample(key, trajectory["id"], prompt, text, tuple(sorted(found.items())))


def replayed(examples: list[PRMExample], fraction: float, seed: int) -> list[PRMExample]:
    """A random share of the examples of an earlier round, at least one, in their order.

    Source: LPR code, data/general.py (replay of 10 % of the first PRM's data in iteration 1).

    Raises:
        ValueError: fraction outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"the replay fraction must lie in [0, 1], found {fraction}")
    count = min(len(examples), max(1, round(fraction * len(examples)))) if fraction else 0
    chosen = sorted(random.Random(f"replay/{seed}").sample(range(len(examples)), count))
    return [examples[i] for i in chosen]
