"""The samples a sync is judged by, and when the claims about them fail."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from recipes.core.sync_guard import (
    ENOUGH,
    PATIENCE,
    PER_TENSOR,
    DifferenceWatch,
    Follower,
    difference_limit,
    digest,
    moved,
    sample,
    sample_all,
)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 5000), st.sampled_from([torch.float32, torch.bfloat16, torch.int8]))
def test_a_sample_is_small_a_copy_and_all_of_a_small_tensor(count, dtype):
    tensor = (torch.arange(count) % 100).to(dtype)
    found = sample(tensor)
    assert found.dtype == dtype and min(count, PER_TENSOR // 2) <= found.numel() <= PER_TENSOR
    if count < PER_TENSOR:
        assert torch.equal(found, tensor)
    tensor.zero_()
    assert count < 2 or found.abs().sum() > 0, "the sample must not change with its tensor"


def test_samples_of_eight_bit_floats_can_be_compared():
    one, two = torch.ones(8).to(torch.float8_e4m3fn), torch.full((8,), 2.0).to(torch.float8_e4m3fn)
    assert moved({"w": sample(one)}, {"w": sample(two)}) == 8


def test_a_sample_of_a_matrix_does_not_stay_in_one_column():
    columns = sample(torch.arange(512 * 512).reshape(512, 512)) % 512
    assert columns.unique().numel() > 100


def test_the_digest_knows_names_contents_and_missing_tensors():
    one = sample_all([("a", torch.ones(3)), ("b", torch.zeros(3))])
    assert digest(one) == digest(dict(reversed(one.items()))), "the order of arrival is no matter"
    swapped = {"a": one["b"], "b": one["a"]}
    changed = one | {"a": one["a"] + 1e-7}
    assert len({digest(one), digest(swapped), digest(changed), digest({"a": one["a"]})}) == 4


def test_movement_below_the_precision_of_the_engine_does_not_count():
    before, after = {"w": torch.full((8,), 0.5)}, {"w": torch.full((8,), 0.5 + 1e-6)}
    assert moved(before, after) == 8
    assert moved(before, after, torch.bfloat16) == 0
    assert moved(before, {"other": torch.ones(8)}) == 0 and moved(None, after) == 0


def steps(*values):
    return [{"w": torch.full((PER_TENSOR,), float(value))} for value in values]


def test_an_engine_that_stands_still_while_the_actor_moves_is_found():
    engine = Follower()
    found = [engine.update(ENOUGH, samples) for samples in steps(*[1] * (PATIENCE + 1))]
    assert found == [True] * PATIENCE + [False]


@pytest.mark.parametrize(
    ("leader", "values"),
    [
        ([ENOUGH] * 4, [1, 2, 3, 4]),  # follows
        ([0, 0, 0, 0], [1, 1, 1, 1]),  # nothing moved: warm-up with learning rate 0
        ([ENOUGH - 1] * 4, [1, 1, 1, 1]),  # less than what rounding can hide
        ([ENOUGH] * 4, [1, 1, 2, 2]),  # one sync alone without movement
    ],
)
def test_an_engine_that_follows_is_left_alone(leader, values):
    engine = Follower()
    assert all(engine.update(count, samples) for count, samples in zip(leader, steps(*values), strict=True))


def test_the_difference_of_a_dropped_sync_is_found_and_that_of_rounding_is_not():
    """Toy runs in float32 showed 1.4e-7 with a sync, 0.105 to 0.115 without."""
    watch = DifferenceWatch(difference_limit("float32", False, False))
    assert [watch.update(value) for value in (1.4e-7, 0.11, 0.11)] == [True, True, False]
    watch = DifferenceWatch(difference_limit("bfloat16", False, False))
    assert all(watch.update(value) for value in (0.004, 0.006, math.nan, 0.02, 0.03, 0.008))


def test_a_difference_that_grows_is_found_below_the_limit():
    """Two roles whose adapters are swapped start equal, and part with their updates."""
    watch = DifferenceWatch(difference_limit("bfloat16", False, False))
    assert [watch.update(value) for value in (0.003, 0.02, 0.04, 0.05)] == [True, True, True, False]


def test_a_first_step_that_is_wrong_is_no_measure_of_the_next():
    watch = DifferenceWatch(1e-3)
    assert [watch.update(value) for value in (5e-3, 5e-3)] == [True, False]
