"""The majority vote as a group hook: rewards, groups that leave, and the other rules."""

import pytest

from recipes.common.groups import Group, Sample
from recipes.serl import voting
from recipes.serl.pseudo_labels import restrain_advantages
from recipes.serl.voting import majority_reward, vote_on_group
from reward_fns.errors import SkipError
from reward_fns.result import Score, Skip

BEFORE = Score(0.0, "no_gold")
OPTIONS = {"convention": "default", "ties": "undecided", "question_in_text": False}


def group(*answers, question="Which?"):
    fields = {"raw_prompt": [{"role": "system", "content": "Think. "}, {"role": "user", "content": question}]}
    texts = [f"so \\boxed{{{answer}}}" if answer else "no idea at all, sorry about that" for answer in answers]
    return Group("u", [Sample(f"u_{i}_0", text, BEFORE, 1, fields) for i, text in enumerate(texts)])


def found(voted):
    return [(sample.result.value, sample.result.reason, sample.result.pred) for sample in voted.samples]


def test_the_majoritys_answer_is_rewarded_and_a_tie_leaves():
    won, tied = group("4", "5", "4", None), group("1", "2")
    assert majority_reward([won, tied]) == {"vote/decided": 0.5}
    assert found(won) == [(1, "", "4"), (0, "minority", "5"), (1, "", "4"), (0, "abstained", "")] and won.drop is None
    assert tied.drop == "vote_tie" and all(sample.result is BEFORE for sample in tied.samples)
    assert majority_reward([]) == {"vote/decided": 0.0}
    assert majority_reward([group("1", "2")], ties="earliest") == {"vote/decided": 1.0}


def test_comparisons_that_fail_skip_the_group(monkeypatch):
    def fail(texts, **options):
        raise SkipError("pool closed")

    monkeypatch.setattr(voting, "majority_vote", fail)
    failed = group("1", "1")
    assert majority_reward([failed]) == {"vote/decided": 0.0}
    assert failed.drop == "vote_failed"
    assert [sample.result for sample in failed.samples] == [Skip("vote_failed: pool closed")] * 2


@pytest.mark.parametrize(
    ("options", "question"),
    [({}, ""), ({"question_in_text": False}, ""), ({"question_in_text": True}, "Think. Which?")],
)
def test_the_question_is_read_with_the_response_if_asked(monkeypatch, options, question):
    read, real = [], voting.majority_vote

    def spy(texts, **options):
        read.extend(texts)
        return real(texts, **options)

    monkeypatch.setattr(voting, "majority_vote", spy)
    majority_reward([group("1", "1")], **options)
    assert read == [question + "so \\boxed{1}"] * 2


def test_restrain_writes_its_advantages_with_and_without_a_winner():
    won, tied = group("4", "5", "4", None), group("1", "2")
    vote = vote_on_group(won, **OPTIONS, rule="restrain", least=2)
    advantages = restrain_advantages(vote.classes, least=2)
    assert found(won) == [
        (advantages[0], "", "4"),
        (advantages[1], "minority", "5"),
        (advantages[2], "", "4"),
        (advantages[3], "abstained", ""),
    ]
    vote_on_group(tied, **OPTIONS, rule="restrain")
    assert [value for value, _, _ in found(tied)] == [-1.0, -1.0] and tied.drop is None
    vote_on_group(tied, **OPTIONS, rule="restrain", penalty=0.25)
    assert [value for value, _, _ in found(tied)] == [-0.25, -0.25]
    three = group("4", "4", "4", "5")
    vote_on_group(three, **OPTIONS, rule="restrain")
    assert found(three)[0][0] > 0


@pytest.mark.parametrize("rule", ["scrl", "rent"])
def test_rules_that_need_entropies_wait_with_zeros(rule):
    voted = group("4", "5", "4", None)
    assert vote_on_group(voted, **OPTIONS, rule=rule).winner == 0
    assert found(voted) == [(0, "", "4"), (0, "minority", "5"), (0, "", "4"), (0, "abstained", "")]
