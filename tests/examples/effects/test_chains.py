"""The world of sums: its demonstrations against enumeration, and what its votes can know."""

import statistics
from collections import Counter

import pytest
import torch
from chains import ALPHABET, Chains, answer_of, gold_of, prompt_of, prompts

GENERATOR = torch.Generator().manual_seed(0)


def test_a_chain_by_hand():
    """0 + 1 is known as 2, always: of two orders of 0, 1 one is wrong, whatever the zeros do."""
    world = Chains({(0, 1): 1}, slip=1.0)
    answers = world.answers("0001=")
    # the 1 comes first in 6 of the 24 orders, and is then no fact with 0 in front of it
    assert answers == pytest.approx({"1": 6 / 24, "2": 18 / 24})
    assert gold_of("0001=") == "1" and gold_of("7392=") == "1"


def test_demonstrations_follow_the_enumerated_distribution():
    world = Chains.drawn(3, wrong=40, same=0.6, slip=0.6)
    drawn: dict[str, Counter] = {}
    for _ in range(20000):
        prompt, response = world.demonstration(GENERATOR)
        assert len(response) == 7
        drawn.setdefault(gold_of(prompt), Counter())[answer_of(response)] += 1
    right = sum(counts[gold] for gold, counts in drawn.items()) / 20000
    expected = statistics.fmean(world.answers(prompt).get(gold_of(prompt), 0.0) for prompt in prompts(0, 2000))
    assert right == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("text", ["", "7", "7309921=", "730992", "73099210", "73=9921"])
def test_what_has_not_the_form_of_a_chain_has_no_answer(text):
    assert answer_of(text) == ""


def test_an_answer_is_the_last_running_sum():
    assert answer_of("7309921") == "1"


def test_equal_errors_outvote_the_truth_and_different_ones_do_not():
    """At the same share of right responses: the ladder's idea."""
    shares = {}
    for same in (0.0, 1.0):
        world = Chains.drawn(1, wrong=40, same=same, slip=0.6)
        found = [(world.answers(prompt), gold_of(prompt)) for prompt in prompts(0, 300)]
        shares[same] = (
            statistics.fmean(answers.get(gold, 0.0) for answers, gold in found),
            statistics.fmean(max(answers, key=answers.get) == gold for answers, gold in found),
        )
    assert shares[0.0][0] == pytest.approx(shares[1.0][0], abs=0.06)
    assert shares[0.0][1] > shares[1.0][1] + 0.2


def test_held_out_prompts_are_no_training_prompts():
    assert not set(prompts(1, 8000)) & set(prompts(2, 2000, held_out=True))
    assert prompt_of([1, 2, 3, 4]) == "1234=" and ALPHABET.decode(ALPHABET.encode(["1234="])) == ["1234="]
