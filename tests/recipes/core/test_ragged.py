"""Rows of different lengths go into tables and jagged tensors and come out the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipes.core.data_plane import jagged, on_last_token, padded, unpadded

LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=5)


@given(LENGTHS, st.floats(-5, 5))
def test_round_trips(lengths, value):
    rows = [torch.rand(length) for length in lengths]
    table = padded(rows, value)
    assert table.shape == (len(lengths), max(lengths))
    for row, back, nested in zip(rows, unpadded(table, lengths), jagged(rows).unbind(), strict=True):
        assert torch.equal(row, back) and torch.equal(row, nested)
    filled = torch.full_like(table, value)
    for index, length in enumerate(lengths):
        assert torch.equal(table[index, length:], filled[index, length:])


@given(st.lists(st.tuples(st.floats(-5, 5, width=32), st.integers(1, 6)), min_size=1, max_size=5))
def test_a_reward_stands_on_the_last_token_alone(drawn):
    rewards, lengths = zip(*drawn, strict=True)
    for reward, length, row in zip(rewards, lengths, on_last_token(rewards, lengths), strict=True):
        assert row.tolist() == [0.0] * (length - 1) + [reward]


def test_an_empty_response_has_no_place_for_a_reward():
    with pytest.raises(ValueError, match="without tokens"):
        on_last_token([1.0, 2.0], [3, 0])
