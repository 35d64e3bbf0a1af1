"""One step's collection: answer, vote and filter by difficulty until enough prompts survive, in bounded rounds."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipes.serl.pool import Instruction
from recipes.serl.sources import Journal, Source
from recipes.serl.voting import judge_difficulty

AGREEMENT_BINS = ("to_0.2", "to_0.4", "to_0.6", "to_0.8", "to_1")


@dataclass(frozen=True)
class Group:
    """The voted answers to one instruction.

    Attributes:
        instruction: the prompt.
        agreement: mean reward of the group in 0..1.
        entropy: of the vote, in nats.
        label_correct: whether the winning answer equals the gold one, `None` without gold.
        answer: the winning answer, `None` without a vote.
        handle: identifies the group's rollouts.
    """

    instruction: Instruction
    agreement: float
    entropy: float = 0.0
    label_correct: bool | None = None
    answer: str | None = None
    handle: Any = None


@dataclass
class Round:
    """What came back from answering one round.

    Attributes:
        groups: whole groups.
        unusable: instructions whose group cannot be used, each with the reason.
        rows: the responses, wherever they lie.
        trainable: whether at least one group is left to train on; `rows` are those of the groups left, else all.
        metrics: counts of the round.
    """

    groups: list[Group]
    unusable: list[tuple[Instruction, str]] = field(default_factory=list)
    rows: Any = None
    trainable: bool = True
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Collection:
    """What a step has to train on.

    Attributes:
        groups: all voted groups of the step, in order.
        trained: the first groups that survived, at most the target.
        reason: why there are fewer than the target, `None` when there are not.
        answered: the rounds of answers.
        unusable: reasons of groups that could not be voted on, counted.
    """

    groups: list[Group] = field(default_factory=list)
    trained: list[Group] = field(default_factory=list)
    reason: str | None = None
    answered: list[Round] = field(default_factory=list)
    unusable: Counter[str] = field(default_factory=Counter)

    @property
    def rounds(self) -> int:
        """Rounds of answers."""
        return len(self.answered)

    @property
    def metrics(self) -> dict[str, float]:
        """Counts of faults summed over the rounds; other metrics of the last round."""
        total: dict[str, float] = {}
        for answered in self.answered:
            for name, number in answered.metrics.items():
                total[name] = total.get(name, 0.0) + number if name.startswith("reward_faults/") else number
        return total


def collect(
    source: Source,
    answer: Callable[[list[Instruction]], Round],
    journal: Journal,
    *,
    step: int,
    target: int,
    round_size: int,
    multiple: int = 1,
    bounds: tuple[float, float] = (0.2, 0.8),
    max_rounds: int = 8,
) -> Collection:
    """Collect `target` groups whose agreement lies within `bounds` (SeRL code, `ppo_trainer.fit` and `online_filter`).

    Each round answers up to `round_size` instructions of `source`; at most `max_rounds` are made. `multiple` is the
    number of prompts that one update needs: a step that falls short trains whole updates, and where the source has
    nothing more to give also the part of one. Survivors become few-shot examples whether or not they are trained on,
    and what is left over expires with the step, as in the original. Every instruction's fate is in the journal when
    this returns.
    """
    collection = Collection()
    survivors: list[Group] = []
    while len(survivors) < target and collection.rounds < max_rounds:
        instructions = source.next_round(round_size, step=step)
        if not instructions:
            break
        answered = answer(instructions)
        collection.answered.append(answered)
        for instruction, reason in answered.unusable:
            collection.unusable[reason] += 1
            _write(journal, "filtered_data", step, instruction, reason=reason)
        for group in answered.groups:
            collection.groups.append(group)
            too_extreme = judge_difficulty(group.agreement, low=bounds[0], high=bounds[1])
            if too_extreme is None:
                survivors.append(group)
                source.add_few_shot([group.instruction])
            else:
                _write_group(journal, "filtered_data", step, group, reason=too_extreme)
    n_trained = min(target, len(survivors))
    if n_trained < target:
        n_trained -= 0 if source.exhausted else n_trained % multiple
        collection.reason = _shortfall(source, collection, len(survivors), target)
    collection.trained = survivors[:n_trained]
    for group in collection.trained:
        _write_group(journal, "keep_train_data", step, group)
    for group in survivors[n_trained:]:
        _write_group(journal, "expired_data", step, group, reason="left_over")
    for instruction in source.end_step():
        _write(journal, "expired_data", step, instruction, reason="not_answered")
    return collection


def vote_metrics(groups: Sequence[Group], trained: Sequence[Group] = ()) -> dict[str, float]:
    """Measure the votes of a step: agreement, entropy, and how often the winner is right where gold is known.

    Label accuracy is given over all voted `groups`, over those that are `trained`, and in each fifth of agreement with
    the number of labelled groups in it. Groups without a gold answer have no part in it; without any there is no such
    metric.
    """
    if not groups:
        return {}
    metrics = {
        "serl/vote/agreement": sum(group.agreement for group in groups) / len(groups),
        "serl/vote/entropy": sum(group.entropy for group in groups) / len(groups),
        "serl/vote/unanimous": sum(group.agreement == 1.0 for group in groups) / len(groups),
    }
    labels = {"": _labels(groups), "_trained": _labels(trained)}
    labels |= {
        f"_agreement_{name}": _labels([group for group in groups if agreement_bin(group.agreement) == name])
        for name in AGREEMENT_BINS
    }
    for name, correct in labels.items():
        if correct:
            metrics[f"serl/vote/label_accuracy{name}"] = sum(correct) / len(correct)
            metrics[f"serl/vote/labelled{name}"] = float(len(correct))
    return metrics


def agreement_bin(agreement: float) -> str:
    """Return the fifth of an agreement in 0..1; each holds its upper end, the first one 0 as well."""
    return AGREEMENT_BINS[min(4, max(0, math.ceil(agreement * 5 - 1e-9) - 1))]


def _labels(groups: Sequence[Group]) -> list[bool]:
    return [group.label_correct for group in groups if group.label_correct is not None]


def _shortfall(source: Source, collection: Collection, n_survivors: int, target: int) -> str:
    survived = f"{n_survivors} of {target} prompts survived {collection.rounds} rounds"
    if source.shortfall:
        return f"{survived}; {source.shortfall}"
    too_easy = sum(group.agreement > 0.5 for group in collection.groups)
    return f"{survived} of {len(collection.groups)} voted groups, {too_easy} of them with agreement above one half"


def _write(journal: Journal, kind: str, step: int, instruction: Instruction, **fields: Any) -> None:
    journal.write(kind, step, idx=instruction.idx, prompt=instruction.text, origin=instruction.origin, **fields)


def _write_group(journal: Journal, kind: str, step: int, group: Group, **fields: Any) -> None:
    fields |= {"reward": group.agreement, "agreement": group.agreement, "entropy": group.entropy}
    if group.answer is not None:
        fields["answer"] = group.answer
    if group.label_correct is not None:
        fields["label_correct"] = group.label_correct
    _write(journal, kind, step, group.instruction, **fields)
