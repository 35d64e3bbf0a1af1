"""Group the responses of a step by prompt, and decide which of them train."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reward_fns.result import FailureBudget, Result, RunningBudget, Score, Skip, count_reasons


@dataclasses.dataclass
class Sample:
    """One response of a group.

    Attributes:
        key: verl's key of the row, ``{uid}_{session}_{index}``.
        response: decoded without special tokens.
        result: the reward manager's verdict. A hook may replace it: by another Score to write a reward, by a Skip to
            take the response out of baseline, mean and loss.
        length: response tokens.
        fields: the dataset's columns of the prompt: ``data_source``, ``reward_model``, ``extra_info``, ``raw_prompt``.
        judged: the reward manager's verdict, whatever a hook makes of ``result``.
    """

    key: str
    response: str
    result: Result
    length: int
    fields: Mapping[str, Any]
    judged: Result = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.judged = self.result


@dataclasses.dataclass
class Group:
    """All responses to one prompt that came back, in the order of their sessions.

    Attributes:
        uid: verl's identifier of the prompt in this step.
        samples: at least one.
        drop: set by a hook, with the reason, to leave the whole group out.
    """

    uid: str
    samples: list[Sample]
    drop: str | None = None


GroupHook = Callable[[Sequence[Group]], Mapping[str, float] | None]


@dataclasses.dataclass(frozen=True)
class ScoredRows:
    """What is left of a step: keys to keep and to drop, rewards of the kept ones and those a hook changed, metrics."""

    kept: list[str]
    dropped: list[str]
    rewards: dict[str, float]
    changed: dict[str, float]
    metrics: dict[str, float]


def group_by_prompt(samples: Sequence[Sample]) -> list[Group]:
    """Group samples by prompt, in the order of first samples; a group's are ordered by session and index."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(uid_of(sample.key), []).append(sample)
    return [Group(uid, sorted(rows, key=lambda sample: session_of(sample.key))) for uid, rows in groups.items()]


def uid_of(key: str) -> str:
    """Return the uid of the prompt from a row's key."""
    return key.rsplit("_", 2)[0]


def session_of(key: str) -> tuple[int, int]:
    """Return session and index from a row's key; sessions finish in any order."""
    _, session, index = key.rsplit("_", 2)
    return int(session), int(index)


def drop_unscored(
    groups: Sequence[Group],
    budget: FailureBudget | RunningBudget,
    *,
    expected: int,
    min_group: int,
    grouped: bool = True,
) -> ScoredRows:
    """Decide which responses train, after the hook.

    A response without a Score leaves. A group that lost members, to skips or to sessions that never came back, and has
    fewer than ``min_group`` left, leaves whole when ``grouped``: what a group-relative estimator makes of a single
    response is not an advantage.

    Args:
        expected: responses that were asked for; the missing ones count against the budget as skips.
        grouped: whether the step samples several responses per prompt.

    Raises:
        reward_fns.errors.BudgetSpent: too much of the batch went unjudged, or nothing of it is left.
    """
    results = [sample.result for group in groups for sample in group.samples]
    missing = [Skip("session_failed")] * max(0, expected - len(results))
    budget.require([*results, *missing])
    kept, dropped, rewards, changed, causes = [], [], {}, {}, Counter()
    for group in groups:
        scored = [sample for sample in group.samples if isinstance(sample.result, Score)]
        small = grouped and len(scored) < min_group
        if group.drop is not None or small or not scored:
            causes["hook" if group.drop is not None else "too_small"] += 1
            scored = []
        for sample in group.samples:
            if sample in scored:
                kept.append(sample.key)
                rewards[sample.key] = sample.result.value
                if sample.result is not sample.judged:
                    changed[sample.key] = sample.result.value
            else:
                dropped.append(sample.key)
    if not kept:
        FailureBudget(share=0.0).require([*results, *missing, Skip("nothing_left_to_train_on")])
    counts = count_reasons([*results, *missing])
    metrics = {f"reward_faults/{reason}": float(number) for reason, number in counts.items() if reason != "score/ok"}
    metrics["reward_faults/skipped_share"] = (len(dropped) + len(missing)) / max(1, expected)
    metrics["groups/dropped_too_small"] = float(causes["too_small"])
    metrics["groups/dropped_by_hook"] = float(causes["hook"])
    metrics["groups/rows_trained"] = float(len(kept))
    return ScoredRows(kept, dropped, rewards, changed, metrics)
