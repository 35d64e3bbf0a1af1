"""The majority vote: its defined rules, its independence of order, and the reference rule against a literal
transcription of its loop.
"""

import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_fns.errors import OptionError, SkipError
from reward_fns.majority import CollapseAlarm, Vote, group_equal, majority_vote, read_answer
from reward_fns.pool import Kind, Outcome, shared_pool
from reward_fns.result import Score, Skip


def boxed(*answers):
    return [rf"so \boxed{{{answer}}}" for answer in answers]


def test_a_plain_majority():
    vote = majority_vote(boxed("42", "41", "42.0", "x=42", "7"))
    assert vote.rewards == (1.0, 0.0, 1.0, 1.0, 0.0)
    assert (vote.winner, vote.agreement, vote.n_classes, vote.abstained) == (0, 0.6, 3, 0)
    assert vote.entropy == pytest.approx(-(0.6 * math.log(0.6) + 2 * 0.2 * math.log(0.2)))


def test_equal_values_in_different_spelling_are_one_class():
    vote = majority_vote(
        boxed(r"\frac{\sqrt2}{2}", r"\frac{1}{\sqrt{2}}", "0.5", "0.5", "1/2", r"\sqrt{1/2}", r"2^{-1/2}")
    )
    assert vote.rewards == (1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0)
    assert vote.n_classes == 2


def test_those_who_do_not_answer_agree_on_nothing():
    silence = "I do not know what to say here, sorry."
    vote = majority_vote([silence] * 5 + boxed("42", "42"))
    assert vote.rewards == (0.0,) * 5 + (1.0, 1.0)
    assert vote.abstained == 5 and vote.agreement == pytest.approx(2 / 7)


@pytest.mark.parametrize(
    ("responses", "reason"),
    [([], "no_answers"), (["", " ", None, 42], "no_answers"), (boxed("42"), "too_few"), (boxed("1", "2"), "tie")]
    + [
        (boxed("1", "2", "2", "1", "3"), "tie"),
        (boxed(r"\frac{1}{", r"\frac{1}{"), "no_answers"),
        (boxed("1", "", ""), "too_few"),
    ],
)
def test_what_decides_nothing(responses, reason):
    vote = majority_vote(responses)
    assert (vote.winner, vote.reason, vote.decided) == (None, reason, False)
    assert vote.rewards == (0.0,) * len(responses)
    assert vote.results() == [Skip(f"vote_{reason}", answer) for answer in vote.answers]


def test_rules_can_be_chosen():
    assert majority_vote(boxed("1", "2", "2", "1"), ties="earliest").rewards == (1.0, 0.0, 0.0, 1.0)
    assert majority_vote(boxed("42"), min_answers=1).winner == 0
    with pytest.raises(OptionError):
        majority_vote([], ties="latest")
    with pytest.raises(OptionError):
        majority_vote([], convention="mean")


def test_a_chain_or_an_unparsable_answer_abstains():
    vote = majority_vote(boxed("x=41=42", "x=41=42", "x=41=42", r"\frac{}{}", "42", "42"))
    assert vote.abstained == 4 and vote.winner == 4


def test_an_answer_that_hangs_abstains_and_the_rest_is_counted():
    # Long enough for the others on a machine with trainings beside.
    vote = majority_vote(boxed(r"2\sqrt3", r"\sqrt{12}", "5^{5^{5^{5}}}", r"\sqrt{13}"), time_limit=4.0)
    assert vote.rewards == (1.0, 1.0, 0.0, 0.0) and vote.abstained == 1


def test_a_dead_pool_is_no_vote():
    class Dead:
        def run(self, *_args, **_kwargs):
            return Outcome(Kind.POOL_DOWN, detail="gone")

    with pytest.raises(SkipError, match="pool_down gone"):
        majority_vote(boxed(r"2\sqrt3", r"\sqrt{12}"), pool=Dead())
    with pytest.raises(SkipError):
        majority_vote(["1", "1"], convention="reference", pool=Dead())


def test_results_tell_minority_from_abstention():
    results = majority_vote([*boxed("1", "1", "2"), "no idea at all"]).results()
    assert results[0] == Score(1.0, "", "1")
    assert (results[2].reason, results[3].reason) == ("minority", "abstained")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{41} \boxed{42}", ""),
        ("The answer is 42.", "42"),
        ("The answer is 41. Sorry, the answer is $42$.", "42"),
        ("The final answer is: **42**", "42"),
        ("6*7\n#### 42", "42"),
        ("42", "42"),
        ("$\\frac12$", "\\frac12"),
        (r"\boxed{42", ""),
        (r"<think>\boxed{42}</think>", ""),
        ("I would say it depends", ""),
        ("so x = 12, and the answer is correct", ""),
        ("The answer is given by the formula below.", ""),
        ("The answer is the", ""),
        ("the answer is unique and positive", ""),
        ("The answer is yes.", "yes"),
        ("**Final Answer:**\n42", "42"),
        ("analysis\\boxed{41}assistantfinal\\boxed{42}", "42"),
        ("[THINK]\\boxed{41}[/THINK] no idea", ""),
        (r"\boxed{None}", ""),
        (r"\boxed{\text{your answer}}", ""),
        (r"\boxed{\ldots}", ""),
        ("", ""),
    ],
)
def test_what_a_response_votes_for(response, answer):
    assert read_answer(response).strip("$") == answer


POOL_OF_ANSWERS = [
    "42",
    "42.0",
    "41",
    r"\frac12",
    "0.5",
    "1/2",
    r"\sqrt{12}",
    r"2\sqrt3",
    "x=42",
    "",
    r"\frac{",
    "(1,2)",
    "2,1",
    "1,2",
]


KEYS = [f"k{number}" for number in range(9)]
PAIRS = st.sets(st.tuples(st.sampled_from(KEYS), st.sampled_from(KEYS)).filter(lambda pair: pair[0] < pair[1]))


@settings(deadline=None)
@given(PAIRS, st.randoms(use_true_random=False))
def test_a_class_never_spans_what_pairs_separate(pairs, rng):
    classes = group_equal(KEYS, pairs)
    for a in KEYS:
        for b in KEYS:
            if a < b and classes[a] == classes[b]:
                assert (a, b) in pairs
    order, shuffled = list(KEYS), list(pairs)
    rng.shuffle(order)
    rng.shuffle(shuffled)
    again = group_equal(order, shuffled)
    assert {(a, b) for a in KEYS for b in KEYS if classes[a] == classes[b]} == {
        (a, b) for a in KEYS for b in KEYS if again[a] == again[b]
    }


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=len(KEYS), max_size=len(KEYS)))
def test_what_is_transitive_stays_together(labels):
    pairs = [(a, b) for i, a in enumerate(KEYS) for j, b in enumerate(KEYS) if i < j and labels[i] == labels[j]]
    classes = group_equal(KEYS, pairs)
    for i, a in enumerate(KEYS):
        for j, b in enumerate(KEYS):
            assert (classes[a] == classes[b]) == (labels[i] == labels[j])


def test_a_percentage_is_no_bridge():
    vote = majority_vote(boxed("0.5", "0.5", r"50\%", "50", "50"))
    assert vote.n_classes == 3 and vote.reason == "tie"
    assert majority_vote(boxed("0.5", "0.5", r"50\%", "50", "50", "50")).rewards == (0.0, 0.0, 1.0, 1.0, 1.0, 1.0)


def test_one_stray_unit_does_not_split_a_class():
    answers = [r"5\text{ cm}"] * 4 + ["5"] * 4 + [r"5\text{ m}"] + ["6"] * 5
    assert majority_vote(boxed(*answers)).rewards == (1.0,) * 8 + (0.0,) * 6


def test_many_formulas_are_compared_within_seconds_and_none_is_lost():
    formulas = [rf"\frac{{{n}}}{{\sqrt{{{n + 1}}}}}" for n in range(1, 60)]
    start = time.monotonic()
    vote = majority_vote(boxed(*formulas, r"\frac{\sqrt{2}}{2}"))
    assert vote.n_classes == 59 and vote.rewards[0] == vote.rewards[-1] == 1.0 and sum(vote.rewards) == 2
    assert time.monotonic() - start < 10


@settings(deadline=None)
@given(st.lists(st.sampled_from(POOL_OF_ANSWERS), max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_the_responses_does_not_matter(answers, rng):
    responses = boxed(*answers)
    order = list(range(len(responses)))
    rng.shuffle(order)
    vote, shuffled = majority_vote(responses), majority_vote([responses[i] for i in order])
    assert shuffled.rewards == tuple(vote.rewards[i] for i in order)
    assert (shuffled.agreement, shuffled.n_classes, shuffled.abstained, shuffled.reason) == (
        vote.agreement,
        vote.n_classes,
        vote.abstained,
        vote.reason,
    )
    assert shuffled.entropy == pytest.approx(vote.entropy)


@settings(deadline=None)
@given(st.lists(st.sampled_from(POOL_OF_ANSWERS), min_size=1, max_size=12))
def test_rewards_mark_one_class(answers):
    vote = majority_vote(boxed(*answers))
    assert sum(vote.rewards) == (vote.agreement * len(answers) if vote.decided else 0)
    if vote.decided:
        assert vote.rewards[vote.winner] == 1.0 and 1.0 not in vote.rewards[: vote.winner]


def literal_reference(texts):
    """SeRL's loop as its description gives it: math_metric on every pair in both directions, the winner's row."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, math_metric

    targets = (ExprExtractionConfig(), LatexExtractionConfig())
    metric = math_metric(targets, targets, aggregation_function=max, precision=6)
    size = len(texts)
    equal = [[i == j for j in range(size)] for i in range(size)]
    for i in range(size):
        for j in range(i + 1, size):
            try:
                same = metric([texts[i]], [texts[j]])[0] == 1.0 or metric([texts[j]], [texts[i]])[0] == 1.0
            except Exception:
                same = False
            equal[i][j] = equal[j][i] = same
    counts = [sum(row) for row in equal]
    return [float(equal[counts.index(max(counts))][j]) for j in range(size)]


QUESTION = "Find x if $2x+3=11$. "
REFERENCE_TEXTS = [
    QUESTION + r"So \boxed{4}.",
    QUESTION + "I cannot say.",
    QUESTION + "Not sure either.",
    QUESTION + "The answer is 4",
    QUESTION + "The final answer is $4$. I hope it is correct.",
    r"\boxed{x=4}",
    r"\boxed{\frac{8}{2}}",
    r"\boxed{5}",
    "no number",
    "",
    r"answer: 0.5",
    r"$\frac{1}{2}$",
    r"\boxed{1,2}",
    r"\boxed{\{2,1\}}",
    r"\boxed{(1,2)}",
    r"\boxed{x>3}",
    r"\boxed{(3,\infty)}",
    r"\boxed{41} \boxed{4}",
    "0.3333333",
    "1/3",
    r"\boxed{x=41=4}",
    r"\boxed{4",
    "４",
]


def test_the_reference_rule_is_the_reference():
    rng = random.Random(0)
    groups = [rng.choices(REFERENCE_TEXTS, k=rng.randint(1, 8)) for _ in range(25)]
    groups += [["", ""], ["no", "none", "1"], ["1", "2"], ["2", "1", "2", "1"], [QUESTION + "I cannot say."] * 3]
    for texts in groups:
        vote = majority_vote(texts, convention="reference")
        assert list(vote.rewards) == literal_reference(texts), texts
        assert vote.agreement == sum(vote.rewards) / len(texts)


def test_question_text_makes_a_fake_majority_under_the_reference_only():
    texts = [QUESTION + "I cannot say.", QUESTION + "Hard to tell.", QUESTION + r"So \boxed{4}."]
    assert majority_vote(texts, convention="reference").rewards == (1.0, 1.0, 0.0)
    assert majority_vote(texts).rewards == (0.0, 0.0, 0.0)


def test_the_reference_survives_a_text_that_hangs(monkeypatch):
    monkeypatch.setattr("reward_fns.majority.REFERENCE_TIME_LIMIT", 9.0)
    texts = [r"\boxed{4}", r"\boxed{4}", r"\boxed{5^{5^{5^{5}}}}"]
    assert majority_vote(texts, convention="reference").rewards == (1.0, 1.0, 0.0)


def test_collapse_is_noticed():
    alarm = CollapseAlarm(window=4, agreement=0.9, same_answer=0.75)
    varied = [majority_vote(boxed(str(i), str(i), "x")) for i in range(4)]
    assert [alarm.observe(vote) for vote in varied] == [""] * 4
    same = [majority_vote(boxed("7", "7.0", "x"))] * 3
    assert "7" in [alarm.observe(vote) for vote in same][-1]
    total = CollapseAlarm(window=2, agreement=0.9)
    assert total.observe(majority_vote(boxed("1", "1"))) == ""
    assert "agreement" in total.observe(majority_vote(boxed("2", "2")))
    with pytest.raises(OptionError):
        CollapseAlarm(window=0)


def test_a_vote_is_a_value():
    assert Vote((), None, 0.0, 0.0, 0, 0) == Vote((), None, 0.0, 0.0, 0, 0)
    assert shared_pool() is shared_pool()


def test_classes_number_the_answers_in_the_order_in_which_they_appear():
    vote = majority_vote(["\\boxed{1/2}", "I see nothing", "\\boxed{7}", "\\boxed{0.5}", "\\boxed{8}"])
    assert vote.classes == (0, None, 1, 0, 2) and vote.n_classes == 3
    matrix = majority_vote(["$7$", "$8$", "$7.0$"], convention="reference")
    assert matrix.classes == (0, 1, 0)
