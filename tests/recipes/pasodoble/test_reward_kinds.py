"""Rewards of other self-play methods: worked numbers, and where they enter a round."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.pasodoble.diversity import DiversityHistory
from recipes.pasodoble.reward import proposer_reward
from recipes.pasodoble.reward_kinds import REWARD_KINDS, reward_of_kind
from recipes.pasodoble.rounds import Proposal, score_rounds
from recipes.pasodoble.settings import RoundSettings

SHOWN = ("pasodoble", "r_zero", "r_zero_code", "learnability", "spice")
# repetition 0.25, diversity 0.5
TABLE = {
    0: (0, 0, -0.25, 0, 0.0439),
    0.1: (0, 0, -0.15, 0.09, 0.2780),
    0.25: (0.95, 0.25, 0, 0.1875, 0.8226),
    0.5: (0.70, 0.75, 0.25, 0.25, 1),
    1: (0.20, 0, -0.25, 0, 0.0439),
}


@pytest.mark.parametrize("p", TABLE)
def test_worked_numbers(p):
    found = [reward_of_kind(kind, p, repetition=0.25, diversity=0.5) for kind in SHOWN]
    assert found == pytest.approx(TABLE[p], abs=1e-4)


def test_the_ends_of_the_scale_of_absolute_zero():
    assert [reward_of_kind("absolute_zero", p) for p in (0, 0.25, 1)] == [0, 0.75, 0]
    assert [reward_of_kind("absolute_zero_code", p) for p in (0, 0.25, 1)] == [-0.5, 0.75, -0.5]


def test_the_weight_of_repetition():
    assert reward_of_kind("r_few", 0.5, repetition=0.25, repetition_weight=2) == pytest.approx(0.5)
    assert reward_of_kind("r_few", 1.0, repetition=0.25) == pytest.approx(-0.25)


def test_what_an_invalid_proposal_gets():
    found = {kind: reward_of_kind(kind, 0.0, valid=False, repetition=0.25) for kind in REWARD_KINDS}
    assert found.pop("r_zero_code") == -1.25 and found.pop("spice") == -0.1
    assert (found.pop("absolute_zero"), found.pop("absolute_zero_code")) == (-1, -1)
    assert set(found.values()) == {0.0} and len(found) == 4


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_default_is_the_reward_of_the_paper(p, d):
    assert reward_of_kind("pasodoble", p, diversity=d) == proposer_reward(p, d)


@pytest.mark.parametrize(("kind", "p"), [("nobody", 0.5), ("spice", 1.1), ("spice", float("nan"))])
def test_unknown_kinds_and_impossible_rates_are_refused(kind, p):
    with pytest.raises(ValueError):
        reward_of_kind(kind, p)


def test_a_proposal_is_valid_new_and_alone_unless_told():
    assert reward_of_kind("pasodoble", 0.5) == pytest.approx(0.6 + 0.2)
    assert reward_of_kind("r_zero", 0.5) == 1.0
    assert reward_of_kind("r_zero_code", 0.5) == 0.5


def played(settings):
    """Two rounds: the first two questions are one cluster of the step, the third is alone; one proposal is invalid."""
    same = "a train runs five hours at a speed of sixty how far does it get"
    first = [Proposal(same, "300", (1, 2)), Proposal(f"{same} today", "300", (3, 4))]
    second = [Proposal("two apples and three pears cost seven what is one worth", "1", (5, 6)), Proposal("", None)]
    verdicts = [[[1.0, 0.0], [1.0, 1.0]], [[1.0, 0.0, 0.0, 0.0], []]]
    return score_rounds(zip([first, second], verdicts, strict=True), DiversityHistory(), settings)


def test_repetition_is_counted_over_the_proposals_of_a_step():
    rewards = [scored.rewards for scored in played(RoundSettings(reward="r_zero_code"))]
    assert rewards[0] == pytest.approx((0.5 - 0.5, 0.0 - 0.5))
    assert rewards[1] == pytest.approx((0.25 - 0.25, -1 - 0.25))


def test_another_reward_changes_neither_the_filter_nor_who_is_asked():
    ours, theirs = played(RoundSettings()), played(RoundSettings(reward="learnability"))
    assert [s.solver_indices for s in ours] == [s.solver_indices for s in theirs] == [(0,), (0,)]
    assert [replace(s, rewards=()) for s in ours] == [replace(s, rewards=()) for s in theirs]
