"""Whatever comes in, a Score or a Skip from the fixed set comes out: no exception, no hang, no key missing."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty import GOLDS, nasty_rows

from reward_fns import format as reward_format
from reward_fns.answer import normal_form, squeeze
from reward_fns.extract import extract_boxed, extract_phrase
from reward_fns.gold import gold_answers
from reward_fns.majority import majority_vote, read_answer
from reward_fns.math import score_batch
from reward_fns.multiple_choice import score as score_choice
from reward_fns.numerals import read_number
from reward_fns.result import VERL_KEYS, Score, Skip, to_verl
from reward_fns.shapes import shape_of
from reward_fns.text import clean
from reward_fns.units import split_unit

RESPONSE_REASONS = {
    "",
    "wrong",
    "no_box",
    "unclosed_box",
    "empty_box",
    "part_of_formula",
    "denied_box",
    "quoted_box",
    "several_boxes",
    "only_thinking",
    "equality_chain",
    "too_long",
    "too_deep",
    "too_many_digits",
    "time_out",
    "out_of_memory",
    "crash",
    "not_text",
}
SKIP_REASONS = {"gold_missing", "gold_unparsable"}


def check(results):
    for result in results:
        if isinstance(result, Score):
            assert result.value in (0.0, 1.0) and result.reason in RESPONSE_REASONS, result
            assert bool(result.reason) == (result.value == 0.0)
        else:
            assert isinstance(result, Skip) and result.reason in SKIP_REASONS, result
        fields = to_verl(result)
        assert tuple(fields) == VERL_KEYS
        fields["pred"].encode("utf-8")


def run(count, seed):
    rows = list(nasty_rows(count, seed))
    for start in range(0, count, 2000):
        part = rows[start : start + 2000]
        results = score_batch([response for response, _ in part], [gold for _, gold in part], time_limit=2.0)
        check(results)
        limits = {"time_out", "out_of_memory", "crash"}
        assert [row for row, result in zip(part, results, strict=True) if result.reason in limits] == []


@pytest.mark.timeout(300)
def test_three_thousand_nasty_responses():
    run(3_000, seed=1)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_hundred_thousand_nasty_responses():
    run(100_000, seed=2)


def test_votes_over_nasty_responses():
    rows = [response for response, _ in nasty_rows(480, seed=3)]
    for start in range(0, len(rows), 16):
        vote = majority_vote(rows[start : start + 16], time_limit=2.0)
        assert len(vote.rewards) == 16 and set(vote.rewards) <= {0.0, 1.0}
        assert 0.0 <= vote.agreement <= 1.0 and vote.entropy >= 0.0


ANY_TEXT = st.text(st.characters(), max_size=200) | st.lists(
    st.sampled_from(list("\\{}()[]$^_,;=<>|&% 0123ab\x02")), max_size=60
).map("".join)


@settings(deadline=None)
@given(ANY_TEXT)
def test_no_text_breaks_a_reader(text):
    form = normal_form(clean(text))
    squeeze(form)
    shape_of(form)
    split_unit(form)
    read_number(form)
    for answer_scope in ("final", "anywhere"):
        assert bool(extract_boxed(text, answer_scope).text) != bool(extract_boxed(text, answer_scope).reason)
        extract_phrase(text, answer_scope)
    read_answer(text)
    gold_answers(text)
    for style in ("strict", "finish", "mmlu_pro"):
        assert score_choice(text, "A", style=style).value in (0.0, 1.0)
    assert reward_format.one_final_box(text).value in (0.0, 1.0)


def whole_answer(text):
    form = normal_form(extract_boxed(text).text)
    return shape_of(form), split_unit(form), read_number(form)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 100_000,
        "\\boxed{1}" * 50_000,
        "{" * 900_000,
        "<" + " " * 900_000,
        "<think>" * 100_000,
        "answer " * 100_000,
        "answer:" + " " * 900_000,
        "A " * 200_000,
        "Finish[" * 100_000,
        "\\boxed{" + "\\frac{" * 150 + "}" * 150 + "}",
        "\\boxed{" + "\\text{" * 150 + "}" * 150 + "}",
        "\\boxed{" + "1 " * 490 + "}",
        "\\boxed{" + "-" * 990 + "}",
        "\\boxed{" + "(" * 40 + ")" * 40 + "}",
        "\\boxed{" + "a=" * 400 + "}",
        "\\boxed{" + "1,000" * 150 + "}",
        "\\boxed{" + "\\pm" * 300 + "1}",
        "\\boxed{" + "1\\text{ m}" * 80 + "}",
        "½" * 100_000,
        "\ufdfa" * 10_000,
        "9" * 1_000_000,
        "x" * 2_000_000,
    ],
    ids=lambda text: ascii(text)[1:16],
)
def test_reading_is_fast_on_texts_made_to_be_slow(text):
    """Reading runs in the caller's process, so it must be linear in the length of the text."""
    for read in (
        extract_boxed,
        extract_phrase,
        read_answer,
        gold_answers,
        lambda t: score_choice(t, "A"),
        whole_answer,
    ):
        started = time.process_time()
        read(text)
        assert time.process_time() - started < 10.0, read
    check(score_batch([text], [GOLDS[0]], time_limit=2.0))
