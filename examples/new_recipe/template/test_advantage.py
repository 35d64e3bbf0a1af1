"""The formula against numbers worked out by hand, and its invariances."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recipes.my_recipe.advantage import leave_one_out


def test_worked_numbers():
    rewards = torch.tensor([1.0, 0.0, 0.0, 5.0])
    assert leave_one_out(rewards, ["a", "a", "a", "b"]).tolist() == pytest.approx([1.0, -0.5, -0.5, 0.0])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-4, 4)), min_size=1, max_size=12), st.randoms())
def test_a_permuted_batch_gives_permuted_advantages(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    before = leave_one_out(torch.tensor([float(r) for _, r in rows]), [p for p, _ in rows])
    after = leave_one_out(torch.tensor([float(rows[i][1]) for i in order]), [rows[i][0] for i in order])
    assert after.tolist() == pytest.approx([before[i].item() for i in order])
