"""The Proposer's reward table and its bounds."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipes.pasodoble.rounds import proposer_reward

TABLE = [
    (0, 1, 0),
    (1 / 6, 1, 0),
    (1 / 3, 1, 0.96666667),
    (1 / 2, 0.3, 0),
    (1 / 2, 0.31, 0.662),
    (1, 1, 0.3),
    (1 / 5, 1, 0),
    (2 / 10, 1, 0),
]


@pytest.mark.parametrize("p, d, expected", TABLE)
def test_reward_table(p, d, expected):
    assert proposer_reward(p, d) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("make", [torch.tensor, np.array, lambda x: np.array(x, dtype=np.float32)])
def test_arrays_and_tensors_agree_with_numbers(make):
    p, d, expected = (list(column) for column in zip(*TABLE, strict=True))
    rewards = proposer_reward(make([float(x) for x in p]), make([float(x) for x in d]))
    assert rewards.shape == (len(TABLE),)
    assert np.allclose(np.asarray(rewards), expected, atol=1e-6)


def test_a_single_precision_pass_rate_of_one_fifth_is_too_low():
    assert proposer_reward(torch.tensor(1.0) / 5, 1.0).item() == 0
    assert proposer_reward(np.float32(0.2), 1.0) == 0


@given(st.floats(0, 1), st.floats(0, 1))
def test_harder_and_newer_never_pays_less(p, d):
    reward = proposer_reward(p, d)
    assert 0 <= reward <= 0.9 + 0.2
    if reward > 0:
        assert proposer_reward((p + 0.2) / 2 + 1e-9, d) >= reward - 1e-9 or p < 0.2 + 1e-6
        assert proposer_reward(p, 1.0) >= reward


@pytest.mark.parametrize("p, d", [(math.nan, 0.5), (0.5, math.nan), (-0.1, 0.5), (1.1, 0.5), (0.5, 2.0)])
def test_values_outside_the_unit_interval_are_refused(p, d):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        proposer_reward(p, d)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        proposer_reward(torch.tensor([0.5, p]), torch.tensor([0.5, d]))
