"""The circle of preferences: its equilibrium, its best scalar scores, and where self-play goes."""

import intransitive
import pytest
import torch


def test_no_response_beats_the_equilibrium():
    assert intransitive.exploitability(intransitive.EQUILIBRIUM) == pytest.approx(0, abs=1e-12)
    assert intransitive.exploitability(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)) == pytest.approx(0.3)


def test_bradley_terry_scores_reproduce_the_share_of_wins():
    """The likelihood's condition: the expected wins of each response are the judge's."""
    scores = intransitive.bradley_terry_scores()
    wins = torch.sigmoid(scores[:, None] - scores).sum(1)
    torch.testing.assert_close(wins, intransitive.CIRCLE.sum(1), atol=1e-4, rtol=0)


def test_self_play_against_the_judge_averages_nearer_to_the_equilibrium_than_on_scores():
    setting = {"rounds": 100, "seed": 0}
    gaps = {
        kind: list(intransitive.play(setting | {"preference": kind}))[-1]["average_gap"]
        for kind in ("judge", "greater score")
    }
    assert gaps["judge"] < 0.05 < 0.15 < gaps["greater score"]
