"""The teacher's rate, its settings, and the labels it gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.common.groups import Group, Sample
from recipes.common.reward_faults import RewardFaults
from recipes.errors import ConfigError
from recipes.serl.judging import judge_by_teacher
from recipes.serl.pool import Instruction
from recipes.serl.settings import SerlSettings, VoteSettings
from recipes.serl.teacher import TeacherSettings, moving_rate
from recipes.serl.voting import vote_of_teacher
from reward_fns.errors import SkipError
from reward_fns.result import Score, Skip

FIELDS = {"data_source": "math", "reward_model": {"ground_truth": "7"}, "extra_info": {}}


def group(*answers, uid="a", fields=FIELDS, verdict=None):
    """Responses with these answers; None for one that holds none. Each is judged against a gold answer of 7."""
    return Group(
        uid,
        [
            Sample(f"{uid}_{i}_0", text(answer), verdict or Score(float(answer == 7)), 3, fields)
            for i, answer in enumerate(answers)
        ],
    )


def text(answer):
    return "I would rather not say anything." if answer is None else f"It is \\boxed{{{answer}}}."


def texts(*answers):
    return [text(answer) for answer in answers]


def test_the_worked_rates():
    rates = [moving_rate(k, 100, first=0.01, last=1e-5) for k in (0, 50, 100)]
    assert rates == pytest.approx([0.01, 0.005005, 1e-5], rel=1e-9)


@given(st.integers(1, 500), st.data())
def test_the_rate_falls_from_the_first_to_the_last_and_stays_there(steps, data):
    step = data.draw(st.integers(0, steps - 1))
    now, next_one = (moving_rate(k, steps, first=0.01, last=1e-5) for k in (step, step + 1))
    assert 1e-5 <= next_one < now <= 0.01
    assert moving_rate(steps + 7, steps, first=0.01, last=1e-5) == pytest.approx(1e-5)


@pytest.mark.parametrize(("step", "steps"), [(-1, 5), (0, 0)])
def test_a_rate_outside_the_run_is_refused(step, steps):
    with pytest.raises(ValueError, match=f"found step {step} of {steps}"):
        moving_rate(step, steps, first=0.01, last=0.0)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"answers": 1}, "serl.teacher.answers of at least 2"),
        ({"answers": 8, "rate_first": 1e-4, "rate_last": 1e-3}, "serl.teacher.rate_last of at most"),
        ({"answers": -1}, "serl.teacher.answers"),
        ({"rate_first": 0.0}, "serl.teacher.rate_first"),
        ({"decay": 0.99}, "decay"),
    ],
)
def test_settings_out_of_range_are_refused(block, message):
    with pytest.raises(ConfigError, match=message):
        SerlSettings.from_mapping({"variant": "majority", "teacher": block})


def test_a_teacher_may_keep_its_rate():
    assert TeacherSettings(rate_first=0.01, rate_last=0.01).rate_last == 0.01


def test_without_a_block_there_is_no_teacher():
    assert SerlSettings.from_mapping({"variant": "majority"}).teacher == TeacherSettings(0, 0.01, 1e-5)


def test_the_teachers_majority_is_the_label_also_against_the_policys():
    found = group(3, 3, 3, 7)
    vote = vote_of_teacher(found, texts(7, 7, 3, None), ties="undecided")
    assert vote.rewards == (0.0, 0.0, 0.0, 1.0) and [sample.result.value for sample in found.samples] == [0, 0, 0, 1]
    assert (vote.teacher.agreement, vote.policy.agreement) == (0.5, 0.75)
    assert found.drop is None


def test_equal_answers_in_other_words_earn_the_reward():
    assert vote_of_teacher(group("1/2", "0.5", 2), texts(r"\frac{1}{2}", "0.5"), ties="undecided").rewards == (1, 1, 0)


def test_responses_without_an_answer_lose_with_a_reason_of_their_own():
    found = group(7, None, 3)
    vote_of_teacher(found, texts(7, 7), ties="undecided")
    assert [sample.result.reason for sample in found.samples] == ["", "abstained", "minority"]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [((7, 3), "teacher_tie"), ((None, None), "teacher_no_answers"), ((7, None), "teacher_too_few")],
)
def test_without_a_label_the_group_leaves(answers, reason):
    found = group(7, 7)
    vote = vote_of_teacher(found, texts(*answers), ties="undecided")
    assert found.drop == reason and vote.rewards == () and [sample.result.value for sample in found.samples] == [1, 1]


def test_the_earliest_of_a_tie_may_win():
    assert vote_of_teacher(group(7, 3), texts(3, 7), ties="earliest").rewards == (0.0, 1.0)


def test_a_request_that_failed_leaves_no_vote():
    found = group(7, 7)
    assert vote_of_teacher(found, [text(7), None], ties="undecided") is None
    assert found.drop == "teacher_incomplete"


def test_workers_that_fail_are_no_fault_of_the_responses(monkeypatch):
    def fail(*_, **__):
        raise SkipError("the pool is gone")

    monkeypatch.setattr("recipes.serl.voting.majority_vote", fail)
    found = group(7, 7)
    assert vote_of_teacher(found, texts(7, 7), ties="undecided") is None
    assert found.drop == "vote_failed" and all(isinstance(sample.result, Skip) for sample in found.samples)


@given(st.lists(st.sampled_from([None, 3, 7, 8]), min_size=2, max_size=6), st.data())
def test_rewards_follow_their_responses(answers, data):
    """A permuted group has permuted rewards, and as many responses are rewarded as give the label."""
    order = data.draw(st.permutations(range(len(answers))))
    rewards = vote_of_teacher(group(*answers), texts(7, 7, 3), ties="undecided").rewards
    permuted = vote_of_teacher(group(*[answers[i] for i in order]), texts(7, 7, 3), ties="undecided").rewards
    assert permuted == tuple(rewards[i] for i in order) and sum(rewards) == answers.count(7)


def judged(groups, taught, n, **settings):
    instructions = {found.uid: Instruction(i, "?", "dataset") for i, found in enumerate(groups)}
    seen = []
    result, settlement = judge_by_teacher(
        groups,
        instructions,
        taught,
        VoteSettings(**settings),
        RewardFaults(skip_share=0.5),
        n=n,
        on_vote=seen.append,
    )
    return result, settlement, seen


def test_a_round_has_the_shares_that_equal_the_labels():
    groups = [group(7, 7, 3, 3, uid="a"), group(3, 3, 3, 8, uid="b"), group(1, 2, 3, 4, uid="c")]
    taught = {"a": texts(7, 7), "b": texts(3, 3), "c": texts(1, 2)}
    found, settlement, seen = judged(groups, taught, 4)
    assert [(g.agreement, g.label_correct, g.answer) for g in found.groups] == [(0.5, True, "7"), (0.75, False, "3")]
    assert [reason for _, reason in found.unusable] == ["teacher_tie"]
    assert [vote.agreement for vote in seen] == [0.5, 0.75, 0.25], "the alarm watches the policy"
    assert found.metrics == {"serl/teacher/agreement": pytest.approx((1 + 1 + 0.5) / 3)}
    assert {key for key in settlement.kept if key.startswith("c")} == set()
    assert settlement.rewards["a_2_0"] == 0.0 and settlement.rewards["b_0_0"] == 1.0


def test_a_label_that_no_response_gives_is_checked_against_gold_itself():
    found, settlement, _ = judged([group(3, 3, uid="a"), group(7, 8, uid="b")], {"a": texts(7, 7), "b": texts(9, 9)}, 2)
    assert [(g.agreement, g.label_correct) for g in found.groups] == [(0.0, True), (0.0, False)]
    assert set(settlement.rewards.values()) == {0.0}


def test_without_gold_nothing_is_said_about_the_label():
    unlabelled = {**FIELDS, "reward_model": {"ground_truth": ""}}
    no_gold = Score(0.0, reason="no_gold")
    groups = [group(3, 3, uid="a", fields=unlabelled, verdict=no_gold)]
    found, _, _ = judged(groups, {"a": texts(7, 7)}, 2)
    assert found.groups[0].label_correct is None


def test_a_group_that_lost_a_response_asks_no_teacher():
    found, _, seen = judged([group(7, uid="a"), group(7, 7, uid="b")], {"a": texts(7, 7), "b": texts(7, 7)}, 2)
    assert [reason for _, reason in found.unusable] == ["incomplete_group"] and len(seen) == 1
