"""The majority of the Solver's answers in place of the Proposer's."""

import pytest

from recipes.pasodoble import voting
from recipes.pasodoble.voting import judge_by_majority
from reward_fns.errors import SkipError
from reward_fns.result import Score, Skip


def group(uid, *answers):
    return {f"{uid}_{i}_0": f"so \\boxed{{{a}}} it is" if a else "nothing" for i, a in enumerate(answers)}


def values(results):
    return {key: result.value for key, result in results.items()}


def test_the_pass_rate_is_the_share_of_the_majority_and_its_first_response_names_the_label():
    results, winners = judge_by_majority(group("a", "4", "1/2", "0.5", None) | group("b", "7", "7"))
    assert values(results) == {"a_0_0": 0, "a_1_0": 1, "a_2_0": 1, "a_3_0": 0, "b_0_0": 1, "b_1_0": 1}
    assert winners == {"a": "a_1_0", "b": "b_0_0"}


def test_of_equally_frequent_answers_the_earliest_wins_so_that_the_share_is_kept():
    results, winners = judge_by_majority(group("a", "3", "5", "5", "3") | group("b", None, "8", "9"))
    assert [results[f"a_{i}_0"].value for i in range(4)] == [1, 0, 0, 1]
    assert [results[f"b_{i}_0"].value for i in range(3)] == [0, 1, 0] and winners == {"a": "a_0_0", "b": "b_1_0"}


def test_without_any_answer_nothing_is_right_and_there_is_no_label():
    results, winners = judge_by_majority(group("a", None, None))
    assert values(results) == {"a_0_0": 0, "a_1_0": 0} and winners == {}


def test_an_answer_inside_the_thinking_counts_as_elsewhere_in_this_recipe():
    results, winners = judge_by_majority({"a_0_0": "<think>\\boxed{3}", "a_1_0": "\\boxed{3}</think> done"})
    assert values(results) == {"a_0_0": 1, "a_1_0": 1} and winners == {"a": "a_0_0"}


def test_a_failure_of_the_comparison_is_no_verdict(monkeypatch):
    real = voting.majority_vote

    def fail_for_nines(texts, **options):
        if "9" in texts[0]:
            raise SkipError("the vote could not be counted: pool closed")
        return real(texts, **options)

    monkeypatch.setattr(voting, "majority_vote", fail_for_nines)
    results, winners = judge_by_majority(group("a", "9", "9") | group("b", "1", "1"))
    assert all(isinstance(results[f"a_{i}_0"], Skip) for i in range(2)) and winners == {"b": "b_0_0"}
    assert results["b_0_0"] == Score(1.0, "", "1")


@pytest.mark.parametrize("answers", [("1", "2", "2", None), ("1",), ("5", "5", "5")])
def test_the_mean_reward_is_the_share_of_the_largest_class(answers):
    results, _ = judge_by_majority(group("a", *answers))
    largest = max(answers.count(answer) for answer in answers if answer)
    assert sum(values(results).values()) == largest
