"""Self-certainty of logits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipes.serl.certainty import self_certainty

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12)


def test_the_worked_numbers():
    logits = torch.tensor([[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert self_certainty(logits).tolist() == pytest.approx([1.8408, 1.3863], abs=1e-4)
    entropies = torch.distributions.Categorical(logits=logits).entropy()
    assert entropies.tolist() == pytest.approx([0.9183, 1.3863], abs=1e-4), "which is another quantity"


@given(LOGITS)
def test_it_is_the_divergence_from_the_uniform_distribution_and_log_v(values):
    logits = torch.tensor(values, dtype=torch.float64)
    size = len(values)
    uniform = torch.full((size,), 1 / size, dtype=torch.float64)
    divergence = torch.nn.functional.kl_div(torch.log_softmax(logits, -1), uniform, reduction="sum")
    found = float(self_certainty(logits[None])[0])
    assert found == pytest.approx(float(divergence) + math.log(size), abs=1e-4)
    assert found >= math.log(size) - 1e-4


@given(LOGITS, st.floats(-5, 5))
def test_a_constant_added_to_the_logits_changes_nothing(values, constant):
    logits = torch.tensor([values])
    assert self_certainty(logits + constant).tolist() == pytest.approx(self_certainty(logits).tolist(), abs=1e-4)


@pytest.mark.parametrize("shape", [(5, 7), (1, 5, 7), (2, 3, 7)])
def test_parts_and_shapes_make_no_difference(shape):
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = self_certainty(logits, rows=2)
    assert found.shape == shape[:-1] and torch.equal(found, self_certainty(logits))


def test_sums_over_a_large_vocabulary_are_taken_in_float32():
    logits = torch.randn(3, 50_000, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = self_certainty(logits)
    exact = torch.logsumexp(logits.double(), -1) - logits.double().mean(-1)
    assert found.dtype == torch.float32 and torch.allclose(found.double(), exact, atol=1e-4)
