"""RESTRAIN's weights and advantages, SCRL's and RENT's rewards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.serl.pseudo_labels import (
    answer_weights,
    positive_class,
    rent_rewards,
    restrain_advantages,
    scrl_rewards,
)

GROUPS = st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=2, max_size=20)


def test_the_worked_numbers():
    assert answer_weights([5, 2, 1], 8) == pytest.approx([0.5825, 0.2506, 0.1669], abs=1e-4)
    advantages = restrain_advantages([0, 1, 0, 0, 2, 0, 1, 0])
    first, second, third = 0.2278, -0.3566, -0.4257
    assert advantages == pytest.approx([first, second, first, first, third, first, second, first], abs=1e-4)


def test_a_group_without_agreement_is_discouraged_as_a_whole():
    assert restrain_advantages([0, 0, 1, 1, None, 2]) == [-1.0] * 6
    assert restrain_advantages([0, 0, 1, 1, None, 2], least=2) != [-1.0] * 6
    assert restrain_advantages([None, None, None], penalty=0.25) == [-0.25] * 3


def test_one_answer_of_all_teaches_nothing():
    assert restrain_advantages([3, 3, 3, 3]) == [0.0] * 4


def test_a_response_alone_is_refused():
    with pytest.raises(ValueError, match="at least two"):
        restrain_advantages([0])


@given(GROUPS)
def test_advantages_sum_to_zero_and_equal_answers_have_equal_ones(classes):
    advantages = restrain_advantages(classes, least=1)
    if any(number is not None for number in classes):
        assert sum(advantages) == pytest.approx(0, abs=1e-9)
    for number in set(classes):
        values = {round(a, 12) for a, other in zip(advantages, classes, strict=True) if other == number}
        assert len(values) == 1


@given(GROUPS, st.randoms())
def test_the_order_of_responses_does_not_matter(classes, random):
    order = list(range(len(classes)))
    random.shuffle(order)
    advantages = restrain_advantages(classes, least=2)
    assert restrain_advantages([classes[i] for i in order], least=2) == pytest.approx([advantages[i] for i in order])


SIXTEEN = [0] * 7 + [1] * 3 + [2] + [None] * 5
ENTROPIES = [0.3] * 7 + [0.4] * 3 + [0.8] + [0.5] * 5


def test_scrl_the_worked_numbers():
    rewards = scrl_rewards(SIXTEEN, ENTROPIES, {0: 7, 1: 3, 2: 1}, 16)
    assert rewards[0] == pytest.approx(0.4487, abs=1e-4)
    assert rewards[7] == pytest.approx(0.0013, abs=1e-4)
    assert rewards[10] == pytest.approx(-0.1013, abs=1e-4)
    assert rewards[11:] == [-1.0] * 5


def test_scrl_a_lead_of_the_margin_alone_gives_no_label():
    assert positive_class({0: 6, 1: 4}, 16, least=0.375, margin=0.125) is None
    assert positive_class({0: 7, 1: 4}, 16, least=0.375, margin=0.125) == 0
    assert positive_class({0: 5, 1: 1}, 16, least=0.375, margin=0.125) is None
    assert positive_class({}, 16, least=0.375, margin=0.125) is None
    assert positive_class({3: 6}, 16, least=0.375, margin=0.125) == 3


def test_scrl_a_rare_answer_the_policy_was_sure_of_is_not_punished():
    sure, unsure = ([0.2] + [0.5] * 15, [0.9] + [0.5] * 15)
    classes, counts = [0] + [1] * 15, {0: 1, 1: 15}
    assert scrl_rewards(classes, sure, counts, 16)[0] > 0 > scrl_rewards(classes, unsure, counts, 16)[0]


def test_scrl_shares_are_those_of_all_votes_when_a_part_is_rewarded():
    part = scrl_rewards([0, 2], [0.4, 0.4], {0: 7, 1: 3, 2: 1}, 16)
    assert part == pytest.approx([7 / 16, 1 / 16 - 0.125])


def test_rent_rewards_certainty_and_an_answer():
    assert rent_rewards([0, None, 1], [0.9183, 0.1, 0.0]) == [-0.9183, -7.0, 0.0]


def test_three_equal_answers_are_enough_by_default():
    assert restrain_advantages([0, 0, 0, 1]) == restrain_advantages([0, 0, 0, 1], least=1)
    assert restrain_advantages([0, 0, 0, 1])[0] > 0 > restrain_advantages([0, 0, 0, 1])[3]


def test_a_group_without_any_answer_has_no_label_to_believe_in():
    assert restrain_advantages([None, None], least=1) == [-1.0, -1.0]


def test_scrl_an_answer_of_the_bounding_share_is_not_rare():
    classes, counts = [0] * 14 + [1] * 2, {0: 14, 1: 2}
    assert scrl_rewards(classes, [0.5] * 16, counts, 16)[14] == 0.0


def test_scrl_wants_an_entropy_for_each_answer():
    with pytest.raises(ValueError, match="2 answers and 1 entropies"):
        scrl_rewards([0, 1], [0.5], {0: 1, 1: 1}, 2)


def test_scrl_the_lead_of_an_only_answer_is_its_whole_share():
    assert positive_class({3: 6}, 16, least=0.375, margin=0.37) == 3
