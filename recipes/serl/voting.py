"""The majority vote as a group hook: responses that give the majority answer are rewarded, tied groups leave.

`trainer.v1.trainer_mode=grouped` takes it in any job, without the rest of this recipe:

    algorithm.group_hook.path=pkg://recipes.serl.voting algorithm.group_hook.name=majority_reward
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from recipes.common.groups import Group, Sample
from recipes.serl.pseudo_labels import restrain_advantages
from reward_fns.errors import SkipError
from reward_fns.majority import Vote, majority_vote
from reward_fns.result import Score, Skip

Convention = Literal["default", "reference"]
Ties = Literal["undecided", "earliest"]
Rule = Literal["majority", "restrain", "scrl", "rent", "self_certainty"]
POLICY_RULES = frozenset({"scrl", "rent", "self_certainty"})
"""Rules whose rewards need the next-token distributions of the policy, and so come after the vote."""


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
    rule: Rule = "majority",
    least: int = 3,
    penalty: float = 1.0,
) -> Vote | None:
    """Vote, and write 1 or 0 as the result of each sample (SeRL code, `math_verify_maj_reward.py`).

    Samples come in the order of their sessions, for the rules that ask which was sampled first. Without a winner there
    is no label, hence no reward: the group gets `drop`, its results stay. When the workers that compare answers fail
    it also gets Skips, which count against the failure budget, and the vote is `None`.

    With `rule="restrain"` the results are the advantages of `restrain_advantages` with `least` and `penalty`, with or
    without a winner; with one of `POLICY_RULES` they are 0 until the policy's distributions are known.
    """
    texts = [_text(sample, question_in_text) for sample in group.samples]
    try:
        vote = majority_vote(texts, convention=convention, ties=ties)
    except SkipError as error:
        _fail(group, error)
        return None
    if rule != "majority":
        rewards = (
            [0.0] * len(texts)
            if rule in POLICY_RULES
            else restrain_advantages(vote.classes, least=least, penalty=penalty)
        )
        for sample, reward, won, answer in zip(group.samples, rewards, vote.rewards, vote.answers, strict=True):
            sample.result = Score(reward, "" if won else "minority" if answer else "abstained", answer)
        return vote
    if not vote.decided:
        group.drop = f"vote_{vote.reason}"
        return vote
    for sample, result in zip(group.samples, vote.results(), strict=True):
        sample.result = result
    return vote


class TaughtVote(NamedTuple):
    """The votes on one prompt where a teacher gives the label.

    Attributes:
        teacher: over the teacher's answers; its winner is the label.
        policy: over the group's own answers, which decides nothing here.
        rewards: 1.0 for each response with the label's answer, else 0.0; empty without a label.
    """

    teacher: Vote
    policy: Vote
    rewards: tuple[float, ...] = ()


def vote_of_teacher(group: Group, texts: Sequence[str | None], *, ties: Ties) -> TaughtVote | None:
    """Let the teacher's `texts` vote, and write 1 or 0 as the result of each sample (Co-rewarding-II).

    Without a label (a tie, no answers) the group gets `drop`, its results stay. It is None where a text is missing,
    and where the workers that compare answers fail, which gives the group Skips as in `vote_on_group`.
    """
    if any(text is None for text in texts):
        group.drop = "teacher_incomplete"
        return None
    responses = [sample.response for sample in group.samples]
    try:
        teacher, policy = majority_vote(texts, ties=ties), majority_vote(responses, ties=ties)
        if teacher.winner is None:
            group.drop = f"teacher_{teacher.reason}"
            return TaughtVote(teacher, policy)
        label, *classes = majority_vote([texts[teacher.winner], *responses]).classes
    except SkipError as error:
        _fail(group, error)
        return None
    rewards = tuple(float(label is not None and number == label) for number in classes)
    for sample, reward, answer in zip(group.samples, rewards, policy.answers, strict=True):
        sample.result = Score(reward, "" if reward else "minority" if answer else "abstained", answer)
    return TaughtVote(teacher, policy, rewards)


def _fail(group: Group, error: SkipError) -> None:
    group.drop = "vote_failed"
    for sample in group.samples:
        sample.result = Skip(f"vote_failed: {error}")


def _text(sample: Sample, question_in_text: bool) -> str:
    if not question_in_text:
        return sample.response
    return "".join(message["content"] for message in sample.fields["raw_prompt"]) + sample.response
