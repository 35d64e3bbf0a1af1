"""Prompts carry what they must and nothing else, braces and all."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.pasodoble.prompts import Prompts, render

PROMPTS = Prompts()


def text(messages):
    return "\n".join(message["content"] for message in messages)


@given(st.text(min_size=20), st.text(min_size=1))
def test_the_solver_sees_the_question_and_nothing_of_the_proposer(knowledge, question):
    baseline = text(PROMPTS.for_solver(""))
    messages = PROMPTS.for_solver(question)
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[1]["content"] == question
    assert text(messages) == baseline + question
    assert knowledge in text(PROMPTS.for_proposer(knowledge))


@pytest.mark.parametrize("braces", ["{question}", "{knowledge}", "{", "}}", r"\frac{1}{2}", "{0}", r"\1"])
def test_braces_in_documents_and_questions_survive(braces):
    assert f"External knowledge: {braces}\n" in PROMPTS.for_proposer(braces)[1]["content"]
    assert PROMPTS.for_solver(braces)[1]["content"] == braces


def test_without_knowledge_the_sentence_is_gone():
    assert "knowledge" not in text(PROMPTS.for_proposer(None)).lower()


def test_boxing_is_asked_for_unless_the_original_prompt_is_wanted():
    assert r"\boxed{}" in text(PROMPTS.for_solver("q"))
    assert "boxed" not in text(PROMPTS.for_solver("q", request_box=False))
    assert r"\boxed{}" in text(PROMPTS.for_proposer("k")) and "{{" not in text(PROMPTS.for_proposer("k"))


@pytest.mark.parametrize("end", ["", "<think>", "<think>\n", "<think>\n\n</think>\n"])
def test_a_rendered_prompt_ends_in_one_open_thinking_block(end):
    tokenizer = SimpleNamespace(chat_template="x", apply_chat_template=lambda messages, **kw: "prompt " + end)
    rendered = render(tokenizer, PROMPTS.for_solver("q"))
    assert rendered.endswith(("<think>", "<think>\n"))
    assert rendered.count("<think>") == 1 + end.count("</think>")


def test_a_tokenizer_without_chat_template_is_refused():
    with pytest.raises(ValueError, match="the tokenizer of 'base-model' has no chat template"):
        render(SimpleNamespace(chat_template=None, name_or_path="base-model"), PROMPTS.for_solver("q"))


def test_texts_can_be_replaced_but_not_misspelt_or_emptied():
    assert Prompts.from_config({"solver_user": "Q: {question}"}).for_solver("1+1")[1]["content"] == "Q: 1+1"
    with pytest.raises(ValueError, match="unknown key pasodoble.prompts.solver_sytem"):
        Prompts.from_config({"solver_sytem": "x"})
    with pytest.raises(ValueError, match="has no {knowledge}"):
        Prompts.from_config({"proposer_user": "x"})
