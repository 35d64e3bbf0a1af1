"""Transfer utility against the worked numbers of specs/extensions.md, section 5 (check 5.1)."""

import math

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


def test_sentences_joined_are_the_response():
    text = "First, 3.5 + 1 = 4.5. Is it?  Yes!\n\nSo \\boxed{4.5}\n"
    found = transfer_utility.sentences(text)
    assert found == ["First, 3.5 + 1 = 4.5. ", "Is it?  ", "Yes!\n\n", "So \\boxed{4.5}\n"]
    assert transfer_utility.sentences("\n\n a. ") == ["\n\n a. "]
    assert transfer_utility.sentences(" \n") == []
    assert transfer_utility.sentences("3=1+2=9", "=") == ["3=", "1+2=", "9"]


def test_every_third_cut_and_the_one_before_the_last_sentence():
    assert transfer_utility.cuts(8) == [0, 3, 6, 7]
    assert transfer_utility.cuts(7) == [0, 3, 6]
    assert (transfer_utility.cuts(1), transfer_utility.cuts(2)) == ([0], [0, 1])
    with pytest.raises(ValueError, match="without sentences"):
        transfer_utility.cuts(0)


def test_several_responses_are_the_worked_ones_together():
    given = [0, 30, 60, 90]
    found = transfer_utility.summarise(
        [(given, [0, 0, 1, 1]), (given, [1, 0, 1, 1]), (given, [0, 0, 0, 0]), ([0], [0])]
    )
    assert found["first_order"] == pytest.approx((0.56 + 0.70) / 4)
    assert (found["alone"], found["traces"], found["never_right"]) == (0.25, 4, 2)
    assert found["regression_rate"] == pytest.approx(1 / 9)
    assert found["second_order"] == pytest.approx(math.log(2) / math.log(50))


def test_what_nothing_gives_has_no_value():
    assert transfer_utility.summarise([]) == {"traces": 0}
    found = transfer_utility.summarise([([0], [0])])
    assert "second_order" not in found and "regression_rate" not in found


def test_what_cannot_be_a_measurement_is_refused():
    with pytest.raises(ValueError, match="expected as many"):
        transfer_utility.curve([0, 20], [1])
    with pytest.raises(ValueError, match="do not rise"):
        transfer_utility.curve([20, 20], [1, 1])
    with pytest.raises(ValueError, match="at least one"):
        transfer_utility.second_order([])
    with pytest.raises(ValueError, match="two"):
        transfer_utility.regression_rate([1])
