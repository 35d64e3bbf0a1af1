"""The majority vote as a group hook: rewards and groups that leave."""

import pytest

from recipes.core.groups import Group, Sample
from recipes.serl import voting
from recipes.serl.voting import majority_reward
from reward_fns.errors import SkipError
from reward_fns.result import Score, Skip

BEFORE = Score(0.0, "no_gold")


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
