"""The majority vote as a group hook: responses that give the majority answer are rewarded, tied groups leave.

`trainer.v1.trainer_mode=grouped` takes it in any job, without the rest of this recipe:

    algorithm.group_hook.path=pkg://recipes.serl.voting algorithm.group_hook.name=majority_reward
"""

from collections.abc import Sequence
from typing import Literal

from recipes.core.groups import Group, Sample
from reward_fns.errors import SkipError
from reward_fns.majority import Vote, majority_vote
from reward_fns.result import Skip

Convention = Literal["default", "reference"]
Ties = Literal["undecided", "earliest"]


def majority_reward(
    groups: Sequence[Group],
    *,
    convention: Convention = "default",
    ties: Ties = "undecided",
    question_in_text: bool = False,
) -> dict[str, float]:
    """Group hook: write the votes of all groups as rewards; returns the share of groups with a winner."""
    votes = [
        vote_on_group(group, convention=convention, ties=ties, question_in_text=question_in_text) for group in groups
    ]
    return {"vote/decided": sum(vote is not None and vote.decided for vote in votes) / max(1, len(votes))}


def vote_on_group(
    group: Group,
    *,
    convention: Convention,
    ties: Ties,
    question_in_text: bool,
) -> Vote | None:
    """Vote, and write 1 or 0 as the result of each sample (SeRL code, `math_verify_maj_reward.py`).

    Samples come in the order of their sessions, for the rules that ask which was sampled first. Without a winner there
    is no label, hence no reward: the group gets `drop`, its results stay. When the workers that compare answers fail
    it also gets Skips, which count against the failure budget, and the vote is `None`.
    """
    texts = [_text(sample, question_in_text) for sample in group.samples]
    try:
        vote = majority_vote(texts, convention=convention, ties=ties)
    except SkipError as error:
        group.drop = "vote_failed"
        for sample in group.samples:
            sample.result = Skip(f"vote_failed: {error}")
        return None
    if not vote.decided:
        group.drop = f"vote_{vote.reason}"
        return vote
    for sample, result in zip(group.samples, vote.results(), strict=True):
        sample.result = result
    return vote


def _text(sample: Sample, question_in_text: bool) -> str:
    if not question_in_text:
        return sample.response
    return "".join(message["content"] for message in sample.fields["raw_prompt"]) + sample.response


def check_bounds(low: float, high: float) -> None:
    """Raise `ValueError` unless 0 <= low <= high <= 1."""
    if not 0.0 <= low <= high <= 1.0:
        raise ValueError(f"agreement bounds must satisfy 0 <= low <= high <= 1, got ({low}, {high})")


def judge_difficulty(agreement: float, *, low: float = 0.2, high: float = 0.8) -> str | None:
    """Return `None` when the instruction stays, else `too_hard` or `too_easy` (SeRL code, `online_filter`).

    `agreement` is the mean reward of the group in 0..1, the share of responses that equal the winner. Both bounds are
    inclusive: of 16 responses, winners of 4 to 12 stay. Raises `ValueError` on a value outside 0..1.
    """
    if not 0.0 <= agreement <= 1.0:
        raise ValueError(f"agreement must lie in 0..1, got {agreement}")
    return "too_hard" if agreement < low else "too_easy" if agreement > high else None
