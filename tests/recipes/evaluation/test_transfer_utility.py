"""Transfer utility against the worked numbers of specs/extensions.md, section 5 (check 5.1)."""

import pytest

from recipes.evaluation import transfer_utility


@pytest.mark.parametrize(
    ("right", "utility", "falls"),
    [([0, 0, 1, 1], 0.56, 0.0), ([1, 0, 1, 1], 0.70, 1 / 3), ([0, 1, 0, 1], 0.56, 1 / 3)],
)
def test_worked_numbers(right, utility, falls):
    assert transfer_utility.first_order([0, 30, 60, 90], right) == pytest.approx(utility)
    assert transfer_utility.regression_rate(right) == pytest.approx(falls)


def test_entropy_of_the_first_success():
    assert transfer_utility.second_order([0, 30, 60, 60]) == pytest.approx(0.2658, abs=5e-5)
    assert transfer_utility.second_order([10, 10]) == 0


def test_the_curve_is_flat_outside_the_cuts():
    found = transfer_utility.curve([20, 60], [0.25, 0.75])
    assert found[:10] == [0.25] * 10 and found[29:] == [0.75] * 21
    assert found[19] == pytest.approx(0.5)


def test_one_cut_decides_alone():
    assert transfer_utility.first_order([0], [1]) == 1
    assert transfer_utility.percents([0, 3], 4) == [0, 75]


def test_what_cannot_be_a_measurement_is_refused():
    with pytest.raises(ValueError, match="expected as many"):
        transfer_utility.curve([0, 20], [1])
    with pytest.raises(ValueError, match="do not rise"):
        transfer_utility.curve([20, 20], [1, 1])
    with pytest.raises(ValueError, match="at least one"):
        transfer_utility.second_order([])
    with pytest.raises(ValueError, match="two"):
        transfer_utility.regression_rate([1])
