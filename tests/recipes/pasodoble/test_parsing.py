"""Questions and answers are found where the reference finds them, in linear time, whatever the completion holds."""

import time

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.pasodoble.parsing import extract_answer, extract_question

RECURSIVE_BOX = regex.compile(r"\\boxed\s*\{(?P<body>(?:\\[{}]|\{(?&body)\}|[^{}])*)\}", regex.DOTALL)

latex = st.lists(
    st.sampled_from(["\\boxed", "\\boxed{", "\\boxed {", "{", "}", "\\", "\\{", "\\}", "a", "2", " ", "\n", "\\frac"]),
    max_size=14,
).map("".join)


@given(latex)
@settings(max_examples=1500, deadline=None)
def test_answer_equals_the_recursive_pattern(completion):
    boxes = [m.group("body") for m in RECURSIVE_BOX.finditer(completion, timeout=5)]
    assert extract_answer(completion, "reference") == (boxes[-1].strip() if boxes else None)


@pytest.mark.parametrize(
    "completion, answer",
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{ \{1, 2\} }", r"\{1, 2\}"),
        (r"\boxed{a\}", "a\\"),
        (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
        ("\\boxed\n{7}", "7"),
        (r"\boxed{\boxed{3}}", r"\boxed{3}"),
        (r"\boxed{ \boxed{3}", "3"),
        (r"<think>\boxed{4}</think> so four", "4"),
        (r"\boxed{}", ""),
        (r"\boxed{never closed", None),
        ("no box", None),
        ("", None),
    ],
)
def test_answer(completion, answer):
    assert extract_answer(completion, "reference") == answer


@pytest.mark.parametrize(
    "completion, answer",
    [
        (r"</think><problem>p</problem> \boxed{1}", "1"),
        (r"</think><problem>p</problem> \boxed{1} <problem>q</problem> \boxed{2}", "1"),
        (r"<think>\boxed{4}</think><problem>p</problem> cut", None),
        (r"<think>\boxed{4}</think> so four", None),
        (r"<think>\boxed{4} cut", None),
        (r"</think> \boxed{1} <problem>p</problem>", None),
        (r"a plain answer \boxed{5}", "5"),
    ],
)
def test_by_default_the_answer_is_the_one_behind_its_problem(completion, answer):
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    "completion, question",
    [
        ("<think>t</think><problem> What is 1+1? </problem>", "What is 1+1?"),
        ("<think><problem>draft</problem></think> nothing", ""),
        ("<think><problem>draft</problem></think><problem>final</problem>", "final"),
        ("</think><problem>old</problem></think><problem>new</problem>", "new"),
        ("</think><problem>a</problem><problem>b</problem>", "a"),
        ("</think><problem>two\nlines</problem>", "two\nlines"),
        ("<problem>no thinking ever ended</problem>", ""),
        ("</think><problem>open", ""),
        ("</think><problem></problem>", ""),
        ("", ""),
    ],
)
def test_question(completion, question):
    assert extract_question(completion) == question


@pytest.mark.parametrize(
    "hostile",
    [
        "\\boxed{" * 50_000,
        "\\boxed{" + "\\}" * 100_000,
        "\\boxed{" + "{\\}" * 60_000,
        "</think>" + "<problem>" * 60_000,
    ],
    ids=["unclosed boxes", "escaped braces", "mixed", "unclosed problems"],
)
def test_hostile_completions_take_linear_time(hostile):
    start = time.process_time()
    extract_answer(hostile)
    extract_question(hostile)
    assert time.process_time() - start < 5


@given(st.text(max_size=300))
def test_any_text_is_parsed(completion):
    assert isinstance(extract_question(completion), str)
    answer = extract_answer(completion)
    assert answer is None or isinstance(answer, str)
