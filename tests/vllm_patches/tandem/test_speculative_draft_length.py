"""The number of drafts follows the measured acceptance, between 1 and the bound."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_patches.tandem.speculative.round import DraftLength, Outcome, best_length, tokens_per_round

SHARES = st.floats(0, 1)


def simulate(dice: random.Random, drafts: int, rounds: int, acceptance: float, senior: float) -> Outcome:
    """Rounds as they come: each position is the senior's with one probability, and passes with another."""
    outcome = Outcome(rounds=rounds, drafted=rounds * drafts)
    for _ in range(rounds):
        for k in range(drafts + 1):
            its_turn = dice.random() < senior
            if k == drafts:
                outcome.emitted += its_turn
                break
            outcome.reached += 1
            outcome.emitted += 1
            outcome.tested += its_turn
            passed = its_turn and dice.random() < acceptance
            outcome.passed += passed
            if its_turn and not passed:
                break
    return outcome


@pytest.mark.parametrize("drafts", [1, 3, 8])
def test_the_expectation_is_what_rounds_emit(drafts):
    acceptance, senior = 0.7, 0.5
    outcome = simulate(random.Random(1), drafts, 40_000, acceptance, senior)
    expected = tokens_per_round(drafts, 1 - senior * (1 - acceptance), senior)
    assert outcome.emitted / outcome.rounds == pytest.approx(expected, abs=0.05)


@given(SHARES, SHARES, st.floats(0, 2), st.integers(1, 12))
def test_it_stays_within_its_bound_and_no_other_number_is_better(stands, senior, cost, bound):
    best = best_length(bound, stands, senior, cost)
    assert 1 <= best <= bound
    worth = [tokens_per_round(k, stands, senior) / (1 + cost * k) for k in range(1, bound + 1)]
    assert worth[best - 1] == max(worth)


@pytest.mark.parametrize(
    ("acceptance", "cost", "low", "high"), [(0.0, 1.0, 1, 2), (0.6, 1.0, 1, 3), (0.95, 0.25, 7, 8), (1.0, 1.0, 8, 8)]
)
def test_it_settles_where_the_acceptance_says_and_moves_when_it_changes(acceptance, cost, low, high):
    dice, length = random.Random(2), DraftLength(8)
    assert length.current == 8
    for change in (acceptance, 1 - acceptance, acceptance):
        for _ in range(400):
            length.observe(simulate(dice, length.current, 16, change, 0.5), cost)
    assert low <= length.current <= high
    fixed = DraftLength(8, adapts=False)
    fixed.observe(simulate(dice, 8, 4000, 0.0, 0.5), 1.0)
    assert fixed.current == 8
