"""From sixteen responses to the decision to train on their prompt, with the real vote under both conventions."""

import subprocess
import sys

import pytest

from recipes.serl.voting import judge_difficulty
from reward_fns.majority import majority_vote


def responses(sizes):
    """Groups of equal boxed answers of the given sizes, filled up to sixteen with answers that stand alone."""
    texts = [f"I get \\boxed{{{1000 + answer}}}." for answer, size in enumerate(sizes) for _ in range(size)]
    return texts + [f"I get \\boxed{{{7000 + i}}}." for i in range(16 - len(texts))]


@pytest.mark.parametrize("convention", ["default", "reference"])
@pytest.mark.parametrize(
    ("sizes", "verdict"), [((3,), "too_hard"), ((4,), None), ((12,), None), ((13,), "too_easy"), ((16,), "too_easy")]
)
def test_agreement_at_the_bounds(convention, sizes, verdict):
    vote = majority_vote(responses(sizes), convention=convention)
    assert sum(vote.rewards) == sizes[0] and vote.winner == 0
    assert judge_difficulty(sum(vote.rewards) / 16) == verdict


def test_a_tie_goes_to_the_first_or_is_undecided():
    texts = responses((6, 6))
    for options in ({"convention": "reference"}, {"ties": "earliest"}):
        assert majority_vote(texts, **options).rewards == (1.0,) * 6 + (0.0,) * 10
    undecided = majority_vote(texts)
    assert not undecided.decided and sum(undecided.rewards) == 0 and undecided.reason == "tie"


def test_without_answers_the_reference_rewards_the_first_and_the_filter_drops_the_group():
    texts = ["no idea at all, sorry about that"] * 16
    vote = majority_vote(texts, convention="reference")
    assert sum(vote.rewards) == 1 and judge_difficulty(sum(vote.rewards) / 16) == "too_hard"
    assert majority_vote(texts).reason == "no_answers"


def test_the_method_imports_neither_verl_nor_its_engines():
    modules = "collection estimators instructions judging pool settings sources voting"
    code = f"import importlib, sys\nfor name in {modules.split()!r}: importlib.import_module('recipes.serl.' + name)\n"
    code += "print(sorted({'verl', 'ray', 'vllm', 'transfer_queue'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
