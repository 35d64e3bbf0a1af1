"""Pass rates, skip test, Solver filter, and rounds scored together as if one after the other."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.pasodoble.diversity import DiversityHistory
from recipes.pasodoble.rounds import (
    Proposal,
    pass_rate,
    questions_to_ask,
    score_round,
    score_rounds,
    within_band,
)
from recipes.pasodoble.settings import RoundSettings

SETTINGS = RoundSettings()
RAW = RoundSettings(filter_by="raw")


def proposal(number):
    return Proposal(f"problem {number}", "the answer", (100 * number, 100 * number + 1))


def verdicts(correct, of=6):
    return [1.0] * correct + [0.0] * (of - correct)


def played(correct, settings=SETTINGS, history=None, proposals=None):
    proposals = proposals or [proposal(i + 1) for i in range(len(correct))]
    rates = [c if c is None or isinstance(c, list) else verdicts(c) for c in correct]
    return score_round(proposals, rates, DiversityHistory() if history is None else history, settings)


def test_rewards_and_filter_of_a_round():
    result = played([0, 1, 2, 3, 5, 6])
    assert result.rewards == pytest.approx((0, 0, 0.9666667, 0.8, 0.4666667, 0.3))
    assert result.skip is None
    assert result.proposer_indices == (0, 1, 2, 3, 4, 5)
    assert result.solver_indices == (2, 3, 4)


@pytest.mark.parametrize(
    "rate, learns",
    [(None, False), (0.0, False), (1 / 5, False), (1 / 6, False), (2 / 6, True), (5 / 6, True), (1.0, False)],
)
def test_the_solver_filter_is_strict_at_both_ends(rate, learns):
    assert within_band(rate, SETTINGS) is learns


@pytest.mark.parametrize(
    "correct, reason",
    [
        ([0, 0, 0, 1, 1, 1], "advantage"),
        ([6] * 6, "advantage"),
        ([3] * 6, "advantage"),
        ([0, 0, 0, 0, 0, 6], "pass_rate"),
        ([None] * 6, "ungraded"),
        ([None, None, 3], "advantage"),
        ([0, 0, 0, 0, 0, 3], None),
    ],
)
def test_each_cause_skips_the_round(correct, reason):
    result = played(correct)
    assert result.skip == reason
    assert (result.proposer_indices == ()) is (result.solver_indices == ()) is (reason is not None)


def test_learnability_pays_for_half_solved_questions_and_changes_nothing_else():
    ours, theirs = played([0, 1, 3, 6]), played([0, 1, 3, 6], RoundSettings(reward="learnability"))
    assert theirs.rewards == pytest.approx((0, 5 / 36, 1 / 4, 0))
    assert replace(theirs, rewards=ours.rewards) == ours


def test_rewards_that_differ_by_rounding_alone_skip_the_round():
    # p and 1 - p are rewarded alike, but 3 and 7 of 10 give other last bits
    result = played([verdicts(3, of=10), verdicts(7, of=10)], RoundSettings(reward="learnability"))
    assert result.rewards[0] == pytest.approx(result.rewards[1]) and result.rewards[0] != result.rewards[1]
    assert result.skip == "advantage"


def test_all_valid_questions_that_repeat_the_history_skip_the_round():
    history = DiversityHistory()
    played([3, 2], history=history)
    assert played([3, 2], history=history, proposals=[proposal(1), proposal(1)]).skip is None
    for _ in range(3):
        played([3], history=history, proposals=[proposal(1)])
    repeated = played([3, 2], history=history, proposals=[proposal(1), proposal(1)])
    assert repeated.rewards == (0.0, 0.0)
    assert repeated.skip == "advantage"


def test_an_ungraded_proposal_is_no_zero():
    result = played([None, 2, 0])
    assert result.rewards[0] is None and result.pass_rates[0] is None
    assert result.proposer_indices == (1, 2)
    assert result.solver_indices == (1,)


@pytest.mark.parametrize("filter_by, learnt", [("checked", ()), ("raw", (0,))])
def test_a_leaking_question_trains_the_solver_only_by_the_original_rule(filter_by, learnt):
    leaking = Proposal("is it 42?", "42", (1,))
    result = played([3, 3, 0], RoundSettings(filter_by=filter_by), proposals=[leaking, proposal(1), proposal(2)])
    assert result.faults == ("answer_in_question", None, None)
    assert (result.raw_pass_rates[0], result.pass_rates[0]) == (0.5, 0.0)
    assert result.rewards[0] == 0
    assert set(result.solver_indices) == {1, *learnt}


def test_the_solver_is_not_asked_what_cannot_count():
    proposals = [Proposal("", "1"), Proposal("a question", None), Proposal("is it 42?", "42"), proposal(1)]
    assert questions_to_ask(proposals, SETTINGS) == [3]
    assert questions_to_ask(proposals, RAW) == [2, 3]
    result = played([[], [], [], 3], proposals=proposals)
    assert result.pass_rates == (0.0, 0.0, 0.0, 0.5)
    assert result.rewards[:3] == (0.0, 0.0, 0.0)


def test_pass_rate_of_short_missing_and_ungraded_groups():
    assert pass_rate([1, 0, 0, 0]) == 0.25
    assert pass_rate([]) == 0.0
    assert pass_rate(None) is None


@pytest.mark.parametrize("admit, entering", [("all", 3), ("parsed", 2), ("valid", 1)])
def test_what_enters_the_history(admit, entering):
    history = DiversityHistory()
    proposals = [Proposal("", None), proposal(1), proposal(2)]
    played([[], 0, 3], replace(SETTINGS, history_admit=admit), history, proposals)
    assert len(history) == entering


def test_a_round_without_a_solvable_question_leaves_the_history_alone():
    history = DiversityHistory()
    result = played([0, 1, None], history=history)
    assert result.diversities == (None, None, None)
    assert len(history) == 0


def test_a_pass_rate_of_tau_low_is_not_solvable():
    history = DiversityHistory()
    result = played([[1.0, 0.0, 0.0, 0.0, 0.0]], history=history)
    assert result.pass_rates == (SETTINGS.tau_low,) and result.diversities == (None,) and len(history) == 0


rounds_strategy = st.lists(
    st.lists(
        st.tuples(
            st.builds(
                Proposal,
                question=st.sampled_from(["", "one", "two", "is it x"]),
                answer=st.sampled_from([None, "x", "one"]),
                token_ids=st.lists(st.integers(0, 4), max_size=4).map(tuple),
            ),
            st.one_of(st.none(), st.lists(st.sampled_from([0.0, 1.0]), max_size=6)),
        ),
        min_size=1,
        max_size=4,
    ).map(lambda rows: ([p for p, _ in rows], [v for _, v in rows])),
    max_size=6,
)


@given(
    rounds_strategy, st.sampled_from(["all", "parsed", "valid"]), st.sampled_from(["checked", "raw"]), st.integers(1, 6)
)
def test_rounds_scored_together_equal_rounds_one_after_the_other(rounds, admit, filter_by, maxlen):
    settings = RoundSettings(history_admit=admit, filter_by=filter_by)
    together, sequential = DiversityHistory(maxlen=maxlen), DiversityHistory(maxlen=maxlen)
    results = score_rounds(rounds, together, settings)
    assert results == [score_round(*one, sequential, settings) for one in rounds]
    assert together.state_dict() == sequential.state_dict()


@given(rounds_strategy, st.integers(0, 6))
def test_a_resumed_run_scores_the_remaining_rounds_alike(rounds, cut):
    whole, first, second = DiversityHistory(), DiversityHistory(), DiversityHistory()
    expected = score_rounds(rounds, whole, SETTINGS)
    done = score_rounds(rounds[:cut], first, SETTINGS)
    second.load_state_dict(first.state_dict())
    assert done + score_rounds(rounds[cut:], second, SETTINGS) == expected


@given(rounds_strategy)
def test_invariants_of_any_round(rounds):
    for result in score_rounds(rounds, DiversityHistory(), SETTINGS):
        for fault, rate, reward in zip(result.faults, result.pass_rates, result.rewards, strict=True):
            assert (rate is None) == (reward is None)
            if fault:
                assert rate == 0 and reward == 0
        for i in result.solver_indices:
            assert 0.2 < result.pass_rates[i] < 1 and result.faults[i] is None
        if result.skip is None:
            assert result.solver_indices
            assert len({result.rewards[i] for i in result.proposer_indices}) > 1


def test_unequal_lists_are_refused():
    with pytest.raises(ValueError, match="2 proposals, but verdicts for 1"):
        score_round([proposal(1), proposal(2)], [[1.0]], DiversityHistory(), SETTINGS)
