"""Judge a round's responses by vote or by label: groups to train on, and what leaves for which reason."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from recipes.core import groups as responses
from recipes.core.groups import GroupHook, ScoredRows, drop_unscored
from recipes.serl.collection import Group, Round
from recipes.serl.pool import Instruction
from recipes.serl.reward import NO_GOLD
from recipes.serl.settings import VoteSettings
from recipes.serl.voting import vote_on_group
from reward_fns.majority import Vote
from reward_fns.result import RunningBudget, Score, Skip


def judge_by_vote(
    groups: Sequence[responses.Group],
    instructions: Mapping[str, Instruction],
    settings: VoteSettings,
    budget: RunningBudget,
    *,
    n: int,
    on_vote: Callable[[Vote], object] = lambda vote: None,
) -> tuple[Round, ScoredRows]:
    """Vote on every group that has all its `n` responses; `instructions` are the prompts of the round by uid.

    The vote replaces whatever the reward function said. Where it knew a gold answer (labelled rows of a dataset), its
    verdict on the winner becomes `label_correct`. `on_vote` sees every vote that could be counted. All answers vote;
    those that `settings.trained_share` leaves out, the last ones of each group, are dropped.

    Raises:
        BudgetSpent: more responses failed, or could not be compared, than the budget allows.
    """
    judged, groups_by_uid = Round([]), {group.uid: group for group in groups}
    for uid, instruction in instructions.items():
        group = groups_by_uid.get(uid)
        if group is None or len(group.samples) < n:
            _drop(judged, instruction, group, "incomplete_group")
            continue
        vote = vote_on_group(
            group, convention=settings.convention, ties=settings.ties, question_in_text=settings.question_in_text
        )
        if vote is not None:
            on_vote(vote)
        if vote is None or vote.winner is None:
            _drop(judged, instruction, group, group.drop or "")
            continue
        label = _label(group.samples[vote.winner].judged) if instruction.origin == "dataset" else None
        # The original's rule votes on whole texts; only the default one reads an answer out of them.
        answer = vote.answers[vote.winner] if settings.convention == "default" else None
        # The winner's own row counts under the original's rule, whose equality is not transitive.
        judged.groups.append(Group(instruction, sum(vote.rewards) / n, vote.entropy, label, answer, handle=uid))
    scored = _select(groups, budget, expected=len(instructions) * n, min_group=n)
    return judged, first_responses(scored, settings.trained_of(n))


def first_responses(scored: ScoredRows, number: int) -> ScoredRows:
    """Keep the first `number` responses of each prompt, in the order of their sessions; the others are dropped."""
    seen: Counter[str] = Counter()
    surplus = set()
    for key in sorted(scored.kept, key=responses.session_of):
        seen[responses.uid_of(key)] += 1
        if seen[responses.uid_of(key)] > number:
            surplus.add(key)
    return replace(
        scored,
        kept=[key for key in scored.kept if key not in surplus],
        dropped=[*scored.dropped, *(key for key in scored.kept if key in surplus)],
        rewards={key: reward for key, reward in scored.rewards.items() if key not in surplus},
        changed={key: reward for key, reward in scored.changed.items() if key not in surplus},
    )


def judge_by_label(
    groups: Sequence[responses.Group],
    instructions: Mapping[str, Instruction],
    hook: GroupHook | None,
    budget: RunningBudget,
    *,
    n: int,
    min_group: int,
) -> tuple[Round, ScoredRows]:
    """Take the rewards as they are, after `hook`; a response without a Score, or without gold answer, leaves its group.

    Agreement is the mean reward of those that stay.

    Raises:
        BudgetSpent: more responses could not be judged than the budget allows.
    """
    for sample in (sample for group in groups for sample in group.samples):
        if _lacks_gold(sample.result):
            sample.result = Skip("gold_missing")
    if hook is not None:
        hook(groups)
    scored = _select(groups, budget, expected=len(instructions) * n, min_group=min(min_group, n))
    judged, groups_by_uid = Round([]), {group.uid: group for group in groups}
    for uid, instruction in instructions.items():
        group = groups_by_uid.get(uid)
        rewards = [scored.rewards[s.key] for s in group.samples if s.key in scored.rewards] if group else []
        if rewards:
            judged.groups.append(Group(instruction, sum(rewards) / len(rewards), handle=uid))
        else:
            judged.unusable.append((instruction, (group and group.drop) or "incomplete_group"))
    return judged, scored


def labelled_samples(
    data_sources: Sequence[str],
    uids: Sequence[str],
    infos: Mapping[str, Sequence],
    expected_counts: Mapping[tuple[str, str], int] | None = None,
) -> tuple[list[str], list[str], dict[str, list], Mapping[tuple[str, str], int] | None]:
    """Select the validation samples whose prompt has a gold answer, in verl's parallel columns."""
    reasons = infos.get("reason", [None] * len(uids))
    places = [place for place, reason in enumerate(reasons) if reason != NO_GOLD]
    unlabelled = {uid for uid, reason in zip(uids, reasons, strict=True) if reason == NO_GOLD}
    expected = expected_counts and {key: n for key, n in expected_counts.items() if key[1] not in unlabelled}
    return (
        [data_sources[place] for place in places],
        [uids[place] for place in places],
        {name: [column[place] for place in places] for name, column in infos.items()},
        expected,
    )


def _drop(judged: Round, instruction: Instruction, group: responses.Group | None, reason: str) -> None:
    judged.unusable.append((instruction, reason))
    if group is not None:
        group.drop = reason


def _lacks_gold(verdict: object) -> bool:
    return isinstance(verdict, Score) and verdict.reason == NO_GOLD


def _label(verdict: object) -> bool | None:
    return verdict.value > 0 if isinstance(verdict, Score) and not _lacks_gold(verdict) else None


def _select(groups: Sequence[responses.Group], budget: RunningBudget, *, expected: int, min_group: int) -> ScoredRows:
    """`drop_unscored`, except that a round of which no group has a winner is no fault: the next one may have."""
    if any(group.drop is None for group in groups):
        return drop_unscored(groups, budget, expected=expected, min_group=min_group)
    results = [sample.result for group in groups for sample in group.samples]
    budget.require([*results, *[Skip("session_failed")] * (expected - len(results))])
    return ScoredRows([], [sample.key for group in groups for sample in group.samples], {}, {}, {})
