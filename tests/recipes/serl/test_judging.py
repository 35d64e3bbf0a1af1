"""A round's responses become voted or labelled groups; what has no verdict leaves, with its reason."""

import json

import pytest

from recipes.core.groups import Group, Sample, drop_unscored
from recipes.serl import voting
from recipes.serl.judging import first_responses, judge_by_label, judge_by_vote, labelled_samples
from recipes.serl.pool import Instruction
from recipes.serl.settings import VoteSettings
from recipes.serl.voting import majority_reward
from reward_fns.errors import BudgetSpent, SkipError
from reward_fns.majority import CollapseAlarm, majority_vote
from reward_fns.result import FailureBudget, Score, Skip

BUDGET = FailureBudget()


def group(uid, answers, results=None):
    results = results or [Score(0.0, reason="no_gold")] * len(answers)
    question = {"raw_prompt": [{"role": "user", "content": "Find x if $2x+3=11$."}]}
    return Group(
        uid,
        [
            Sample(f"{uid}_{i}_0", answer if " " in answer else f"So it is \\boxed{{{answer}}}.", result, 9, question)
            for i, (answer, result) in enumerate(zip(answers, results, strict=True))
        ],
    )


def prompts(*uids, origin="generated"):
    return {uid: Instruction(number, f"question {uid}", origin) for number, uid in enumerate(uids)}


def vote(groups, instructions, n=4, budget=BUDGET, on_vote=lambda vote: None, **settings):
    return judge_by_vote(groups, instructions, VoteSettings(**settings), budget, n=n, on_vote=on_vote)


def test_votes_become_rewards_and_groups_without_a_winner_leave():
    groups = [group("a", "3353"), group("tied", "3355"), group("none", ["no answer here"] * 4), group("b", "7777")]
    judged, scored = vote(groups, prompts("a", "tied", "none", "b"))
    assert [(g.handle, g.agreement) for g in judged.groups] == [("a", 0.75), ("b", 1.0)]
    assert [(i.text, reason) for i, reason in judged.unusable] == [
        ("question tied", "vote_tie"),
        ("question none", "vote_no_answers"),
    ]
    rewards = {"a_0_0": 1, "a_1_0": 1, "a_2_0": 0, "a_3_0": 1} | {f"b_{i}_0": 1 for i in range(4)}
    assert scored.rewards == rewards and sorted(scored.kept) == sorted(rewards)
    assert sorted(scored.dropped) == sorted(f"{uid}_{i}_0" for uid in ("tied", "none") for i in range(4))
    assert scored.metrics["reward_faults/score/minority"] == 1
    assert [g.answer for g in judged.groups] == ["3", "7"]


def test_the_collapse_alarm_sees_every_vote_and_goes_on_from_a_checkpoint():
    votes = []
    vote(
        [group("a", "3353"), group("tied", "3355"), group("short", "33")],
        prompts("a", "tied", "short"),
        budget=FailureBudget(0.5),
        on_vote=votes.append,
    )
    assert [v.agreement for v in votes] == [0.75, 0.5]
    alarm, unanimous = CollapseAlarm(window=4), majority_vote([r"\boxed{3}"] * 4)
    assert [alarm.observe(unanimous) for _ in range(3)] == [""] * 3
    restored = CollapseAlarm(window=4)
    restored.load_state_dict(json.loads(json.dumps(alarm.state_dict())))
    assert restored.observe(unanimous) == alarm.observe(unanimous) != ""


def test_groups_that_lost_responses_or_never_came_are_not_voted_on():
    judged, scored = vote(
        [group("short", "333"), group("a", "3335")], prompts("short", "a", "gone"), budget=FailureBudget(0.6)
    )
    assert [g.handle for g in judged.groups] == ["a"]
    assert [reason for _, reason in judged.unusable] == ["incomplete_group"] * 2
    assert scored.dropped == ["short_0_0", "short_1_0", "short_2_0"]


def test_a_round_in_which_every_vote_is_tied_is_no_fault():
    judged, scored = vote([group("a", "3355"), group("b", "1122")], prompts("a", "b"))
    assert judged.groups == [] and scored.kept == [] and len(scored.dropped) == 8


def test_lost_responses_spend_the_budget():
    with pytest.raises(BudgetSpent, match="session_failed"):
        vote([group("a", "3335")], prompts("a", "b", "c"))


def test_a_pool_that_fails_is_a_skip_of_the_group_and_then_the_end_of_the_run(monkeypatch):
    real = voting.majority_vote

    def fails_on_seven(texts, **options):
        if "7" in texts[0]:
            raise SkipError("the workers died")
        return real(texts, **options)

    monkeypatch.setattr(voting, "majority_vote", fails_on_seven)
    groups = [group(f"g{i}", "3335") for i in range(10)] + [group("bad", "7777")]
    judged, scored = vote(groups, prompts(*(g.uid for g in groups)))
    assert [reason for _, reason in judged.unusable] == ["vote_failed"] and len(judged.groups) == 10
    assert scored.metrics["reward_faults/skip/vote_failed"] == 4
    with pytest.raises(BudgetSpent, match="the workers died"):
        vote([group("bad", "7777"), group("a", "3335")], prompts("bad", "a"))


def test_where_gold_is_known_the_verdict_on_the_winner_is_the_label():
    right, wrong, unknown = Score(1.0), Score(0.0), Skip("gold_unparsable")
    groups = [
        group("right", "3355" + "3", [right, right, wrong, wrong, right]),
        group("wrong", "5533" + "5", [wrong, wrong, right, right, wrong]),
        group("unknown", "55535", [unknown] * 5),
    ]
    names = ("right", "wrong", "unknown")
    judged, scored = vote(groups, prompts(*names, origin="dataset"), n=5)
    assert [g.label_correct for g in judged.groups] == [True, False, None]
    assert len(scored.kept) == 15, "the vote replaces what the reward function could not say"
    groups = [group("right", "33553", [right, right, wrong, wrong, right])]
    judged, _ = vote(groups, prompts("right"), n=5)
    assert judged.groups[0].label_correct is None, "a self-made prompt has no gold"


def test_unlabelled_rows_of_a_dataset_have_no_label():
    judged, scored = vote([group("a", "3353")], prompts("a", origin="dataset"))
    assert judged.groups[0].label_correct is None and len(scored.kept) == 4


def test_a_row_without_gold_is_skipped_where_labels_are_the_reward():
    groups = [group("a", "3353"), group("b", "3353", [Score(1.0)] * 4)]
    with pytest.raises(BudgetSpent, match="gold_missing"):
        judge_by_label(groups, prompts("a", "b", origin="dataset"), None, BUDGET, n=4, min_group=2)
    judged, scored = judge_by_label(
        groups, prompts("a", "b", origin="dataset"), None, FailureBudget(0.5), n=4, min_group=2
    )
    assert [g.handle for g in judged.groups] == ["b"] and scored.metrics["reward_faults/skip/gold_missing"] == 4


def test_validation_is_over_the_labelled_problems_alone():
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    infos = {"reward": [1.0, 0.0, 0.0], "acc": [1.0, 0.0, 0.0], "reason": ["", "no_gold", "wrong"]}
    expected = {("math", "a"): 1, ("math", "b"): 1, ("math", "c"): 1}
    columns = ["math"] * 3, ["a", "b", "c"], infos, expected
    sources, uids, infos, expected = labelled_samples(*columns)
    assert uids == ["a", "c"] and infos["acc"] == [1.0, 0.0]
    found = process_validation_metrics(sources, uids, infos, expected_acc_counts=expected)
    assert found["math"]["acc"]["mean@1"] == 0.5
    sources, uids, infos, expected = labelled_samples(
        ["web"], ["x"], {"acc": [0.0], "reason": ["no_gold"]}, {("web", "x"): 1}
    )
    assert process_validation_metrics(sources, uids, infos, expected_acc_counts=expected) == {}


def test_the_question_is_part_of_the_text_only_when_asked_for():
    silent = ["I am not sure about this one"] * 4
    assert vote([group("a", silent)], prompts("a"))[0].groups == []
    judged, _ = vote([group("a", silent)], prompts("a"), convention="reference", question_in_text=True)
    assert judged.groups[0].agreement == 1.0, "the equation of the question is everybody's answer"


def test_labelled_rewards_stay_and_skips_leave_the_mean():
    results = [Score(1.0), Skip("endpoint_down"), Score(0.0), Score(1.0)]
    groups = [group("a", "1234", results), group("b", "1234", [Score(0.0)] * 4)]
    judged, scored = judge_by_label(groups, prompts("a", "b"), None, FailureBudget(0.2), n=4, min_group=2)
    assert [(g.handle, g.agreement) for g in judged.groups] == [("a", 2 / 3), ("b", 0.0)]
    assert scored.dropped == ["a_1_0"] and len(scored.kept) == 7


def test_a_group_with_too_few_scores_leaves_whole_and_beyond_the_budget_the_run_ends():
    groups = [group("a", "1234", [Score(1.0)] + [Skip("endpoint_down")] * 3), group("b", "1234", [Score(1.0)] * 4)]
    judged, scored = judge_by_label(groups, prompts("a", "b"), None, FailureBudget(0.5), n=4, min_group=2)
    assert [g.handle for g in judged.groups] == ["b"]
    assert [reason for _, reason in judged.unusable] == ["incomplete_group"]
    assert len(scored.dropped) == 4
    with pytest.raises(BudgetSpent, match="endpoint_down"):
        judge_by_label(groups, prompts("a", "b"), None, BUDGET, n=4, min_group=2)


def test_the_hook_of_the_job_has_its_say_on_labelled_rewards():
    def hook(groups):
        groups[0].samples[0].result = Score(0.5)
        groups[1].drop = "not_this_one"

    groups = [group("a", "12", [Score(1.0)] * 2), group("b", "12", [Score(1.0)] * 2)]
    judged, scored = judge_by_label(groups, prompts("a", "b"), hook, BUDGET, n=2, min_group=2)
    assert [(g.handle, g.agreement) for g in judged.groups] == [("a", 0.75)]
    assert [reason for _, reason in judged.unusable] == ["not_this_one"]
    assert scored.rewards == {"a_0_0": 0.5, "a_1_0": 1.0}


def test_the_vote_is_a_hook_that_any_job_can_name():
    groups = [group("a", "3353"), group("tied", "3355")]
    assert majority_reward(groups) == {"vote/decided": 0.5}
    scored = drop_unscored(groups, FailureBudget(), expected=8, min_group=2)
    assert scored.rewards == {"a_0_0": 1.0, "a_1_0": 1.0, "a_2_0": 0.0, "a_3_0": 1.0}
    assert scored.metrics["groups/dropped_by_hook"] == 1


def test_all_answers_vote_and_the_first_ones_train():
    """The majority of four is 5; of the two that train alone it would be a tie."""
    judged, scored = vote([group("a", "3555")], prompts("a"), trained_share=0.5)
    assert judged.groups[0].answer == "5" and judged.groups[0].agreement == 0.75
    assert scored.kept == ["a_0_0", "a_1_0"] and sorted(scored.dropped) == ["a_2_0", "a_3_0"]
    assert scored.rewards == {"a_0_0": 0.0, "a_1_0": 1.0}
    assert set(scored.changed) <= set(scored.kept)


def test_the_first_responses_are_those_of_the_first_sessions_whatever_the_order_of_the_rows():
    keys = [f"u_{session}_0" for session in (10, 2, 0, 9)] + ["other_1_0", "other_0_0"]
    rows = drop_unscored(
        [Group("u", [Sample(key, "", Score(1.0), 1, {}) for key in keys])], FailureBudget(), expected=6, min_group=2
    )
    first = first_responses(rows, 2)
    assert first.kept == ["u_2_0", "u_0_0", "other_1_0", "other_0_0"]
    assert sorted(first.dropped) == ["u_10_0", "u_9_0"]
