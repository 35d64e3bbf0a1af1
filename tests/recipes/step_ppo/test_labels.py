"""Values of states, and class sums."""

import pytest
import torch

from recipes.step_ppo.labels import class_probability, state_value, trajectory_value


def right(text):
    return text.endswith("A")


@pytest.mark.parametrize(("completions", "value"), [("BBB", 0), ("ABB", 1), ("AAB", 2), ("AAA", 3)])
def test_value_is_the_number_of_hits(completions, value):
    assert state_value(list(completions), right).value == value


def test_an_empty_completion_discards_the_state():
    result = state_value(["A", "", "A"], right)
    assert result.value is None and result.reason == "empty_completion"


def test_blank_is_not_empty():
    assert state_value(["A", " ", "A"], right).value == 2


def test_repeated_completions():
    assert state_value(["A", "A", "B"], right).value == 2
    assert state_value(["A", "A", "B"], right, require_distinct=True).reason == "repeated_completion"


@pytest.mark.parametrize(
    ("prefix", "kept"),
    [
        ("a\nAction 2: go", True),
        ("a\nAction 2: g", False),
        ("a\nAction 2: \n\n", False),
        ("four", False),
        ("seven..", True),
    ],
)
def test_short_last_step(prefix, kept):
    assert (state_value(["A", "B", "BA"], right, prefix=prefix).value is not None) == kept


def test_no_completion():
    with pytest.raises(ValueError, match="at least one"):
        state_value([], right)


def test_complete_trajectories():
    assert trajectory_value(True, 3) == 3 and trajectory_value(False, 3) == 0


def test_class_sums():
    probabilities = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]], dtype=torch.float64)
    expected = {(2, 3): [0.7, 0.2], (1, 2, 3): [0.9, 0.3], (3,): [0.4, 0.1], (0, 1, 2, 3): [1.0, 1.0]}
    for classes, sums in expected.items():
        torch.testing.assert_close(class_probability(probabilities, classes), torch.tensor(sums, dtype=torch.float64))
    assert class_probability(probabilities[None]).shape == (1, 2)


@pytest.mark.parametrize("classes", [(), (4,), (-1,), (2, 2), (2, 4), (-1, 2)])
def test_classes_outside_the_model(classes):
    with pytest.raises(ValueError, match="distinct"):
        class_probability(torch.ones(4) / 4, classes)


def test_completions_that_all_differ_are_kept():
    assert state_value(["A", "B", "BA"], right, require_distinct=True).value == 2


def test_the_classes_are_summed_whatever_the_number_of_dimensions():
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert class_probability(probabilities).item() == pytest.approx(0.7)
    assert class_probability(probabilities, range(1, 4)).item() == pytest.approx(0.9)
    assert class_probability(probabilities.expand(5, 3, 4)).shape == (5, 3)
