"""The experiment on votes: the rewards of its arms, and its statistics by hand."""

import random

import pytest
import serl

from reward_fns.majority import majority_vote

VOTE = majority_vote(["4", "4", "4", "5", "5", ""])


def test_rewards_of_each_arm():
    assert serl.rewards_of("votes", VOTE, "5", random.Random(0)) == [1, 1, 1, 0, 0, 0]
    assert serl.rewards_of("truth", VOTE, "5", random.Random(0)) == [0, 0, 0, 1, 1, 0]
    drawn = {tuple(serl.rewards_of("random", VOTE, "5", random.Random(seed))) for seed in range(20)}
    assert drawn == {(1, 1, 1, 0, 0, 0), (0, 0, 0, 1, 1, 0)}


def test_ranks_and_separation_by_hand():
    assert serl.ranks([3.0, 1.0, 3.0]) == [2.5, 1.0, 2.5]
    assert serl.spearman([1, 2, 3], [9, 8, 7]) == pytest.approx(-1)
    assert serl.separation([1, 2, 2], [False, True, False]) == 0.75
