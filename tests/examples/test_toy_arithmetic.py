"""The arithmetic problems: right answers, splits that share no numbers, and agreement of the two graders."""

import re

import pytest
from toy_world.formats import FORMATS, arithmetic, load_format


@pytest.fixture(scope="module")
def split():
    return arithmetic.split(seed=0)


def numbers(example):
    info = example.extra_info
    return info["operation"], info["first"], info["second"]


def test_no_numbers_stand_in_both_splits(split):
    assert not {numbers(example) for example in split.train} & {numbers(example) for example in split.test}
    assert len({numbers(example) for example in split.test}) == 500


def test_question_asks_for_the_ground_truth_and_the_response_gives_it(split):
    for example in split.train + split.test:
        operation, first, second = numbers(example)
        question = example.prompt[0]["content"]
        assert [int(number) for number in re.findall(r"\d+", question)] == [first, second]
        assert int(example.ground_truth) == (first + second if operation == "+" else first - second) >= 0
        assert arithmetic.grade(example.response, example.ground_truth)
        assert f"{first} {operation} {second} = {example.ground_truth}" in example.response


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_keeps_the_contract(name):
    toy_format = load_format(name)
    low, high = toy_format.BAND
    assert 0 < low < high < 1
    assert toy_format.DATA_SOURCE and toy_format.ABILITY and toy_format.MAX_RESPONSE_TOKENS > 0
    split = toy_format.split(seed=3)
    for example in split.train[:50] + split.test[:50]:
        assert not example.response or toy_format.grade(example.response, example.ground_truth)
        assert not toy_format.grade("", example.ground_truth)


@pytest.mark.parametrize(
    ("response", "truth"), [(r"so \boxed{19}", "19"), (r"\boxed{18} no, \boxed{19}", "19"), (r"\boxed{18}", "19")]
)
def test_grade_agrees_with_the_reward_that_recipes_use(response, truth):
    from reward_fns.math import compute_score

    score = compute_score(data_source=arithmetic.DATA_SOURCE, solution_str=response, ground_truth=truth, extra_info={})
    assert (score["score"] == 1.0) is arithmetic.grade(response, truth)
