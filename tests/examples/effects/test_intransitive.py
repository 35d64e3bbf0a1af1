"""The circle of preferences: its equilibrium, its best scalar scores, and where SPPO's self-play goes.

SPPO's claim for general preferences (paper, section 3 and theorem 4.1), with the recipe's win rates, target and loss.
"""

import functools

import intransitive
import pytest
import torch


@functools.cache
def end_of_play(preference):
    return list(intransitive.play({"preference": preference, "seed": 0, "rounds": intransitive.ROUNDS}))[-1]


def test_no_response_beats_the_equilibrium():
    assert intransitive.exploitability(intransitive.EQUILIBRIUM) == pytest.approx(0, abs=1e-12)
    assert intransitive.exploitability(torch.full((3,), 1 / 3, dtype=torch.float64)) > 0.05
    assert intransitive.exploitability(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)) == pytest.approx(0.3)


def test_bradley_terry_scores_reproduce_the_share_of_wins():
    """The likelihood's condition: the expected wins of each response are the judge's."""
    scores = intransitive.bradley_terry_scores()
    wins = torch.sigmoid(scores[:, None] - scores).sum(1)
    torch.testing.assert_close(wins, intransitive.CIRCLE.sum(1), atol=1e-4, rtol=0)


def test_the_average_policy_of_self_play_goes_to_the_equilibrium():
    end = end_of_play("judge")
    assert end["average_gap"] < 0.03
    assert end["average"] == pytest.approx(intransitive.EQUILIBRIUM.tolist(), abs=0.05)


def test_scalar_scores_end_at_a_response_that_another_one_beats():
    """The control: the same loss on the best scalar scores settles on one response and loses to the next."""
    end = end_of_play("greater score")
    assert max(end["policy"]) > 0.95 and end["policy_gap"] > 0.15
    assert end["average_gap"] > 0.15
