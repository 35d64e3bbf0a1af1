"""Parser, text filters and few-shot prompts against the rules of the original code."""

import json
import random
import re
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.serl.instructions import (
    PromptTemplate,
    compose_messages,
    draw_examples,
    filter_instruction,
    fit_prompt,
    load_template,
    parse_instructions,
)


def words(n: int) -> str:
    return "Find " + " ".join(f"w{i}" for i in range(n - 1))


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        ("no marker at all", []),
        ("1) a list with brackets\n2) is not parsed", []),
        ("preamble is dropped 1. first one\n2. second one", ["first one", "second one"]),
        ("9. What is 3 + 4?\n10. What is 5 + 6?", ["What is 3 + 4?", "What is 5 + 6?"]),
        ("1. spans\ntwo lines\n2.\tsecond", ["spans\ntwo lines", "second"]),
        ("1. cut by the token lim", ["cut by the token lim"]),
        ("1. ends with a newline\n", ["ends with a newline"]),
        ("1. price is 2.50 dollars\n2. next", ["price is 2.50 dollars", "next"]),
        ("1. same line 2. is not a new item", ["same line 2. is not a new item"]),
        ("1.no space\n2. space", ["space"]),
        ("1.   \n2. second", ["2. second"]),
        ("3. only item 1\n\n4. after a blank line", ["only item 1", "after a blank line"]),
        ("\n".join(f"{i}. question {i}" for i in range(1, 8)), [f"question {i}" for i in range(1, 8)]),
    ],
)
def test_parse_cases_of_the_original(text, items):
    assert parse_instructions(text, "reference") == items


QUESTION = "What is the area of a square of side 3?"


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (f"9. {QUESTION}\n10. Find x if 2x = 6.", [QUESTION, "Find x if 2x = 6."]),
        (f"9) {QUESTION}\n10) Find x if 2x = 6.", [QUESTION, "Find x if 2x = 6."]),
        (f"**9.** {QUESTION}\n**10.** Find x if 2x = 6.", [QUESTION, "Find x if 2x = 6."]),
        (f"### 9. {QUESTION} ### 10. Find x if 2x = 6.", [QUESTION, "Find x if 2x = 6."]),
        (f"Here are more:\n\n9. {QUESTION}", [QUESTION]),
        ("The height is 12. What is the area?", []),
        ("9. The height is 12. What is the area?", ["The height is 12. What is the area?"]),
        (f"<think>Plan:\n1. Find an idea.\n2. Write it.</think>9. {QUESTION}", [QUESTION]),
        (f"9. {QUESTION}\n1. Multiply 3 by 3.\n2. The area is 9.", [QUESTION]),
        (f"9. {QUESTION}\nA. 3\nB. 9\n10. Find x if 2x = 6.", [QUESTION, "Find x if 2x = 6."]),
        (f"9. {QUESTION}\nSolution: 9", [QUESTION]),
        ("9. Multiply both sides by 2.\n10. The answer is 4.", []),
        ("9. What is the area of a squ", []),
        (f"9. {QUESTION}\n10. What is the area of a squ", [QUESTION]),
        ("9. Как найти площадь квадрата со стороной 3?", ["Как найти площадь квадрата со стороной 3?"]),
    ],
)
def test_by_default_an_item_is_a_whole_question_or_nothing(text, items):
    assert parse_instructions(text) == items


@settings(deadline=None)
@given(st.text(alphabet="12. \n\tab٣:)", max_size=60))
def test_parse_equals_the_rule_of_the_original(text):
    rule = re.compile(r"\d+\.\s+(.*?)(?=\n\d+\.\s+|$)", re.DOTALL)
    assert parse_instructions(text, "reference") == [item.strip() for item in rule.findall(text)]


@pytest.mark.parametrize(
    "text", ["7" * 300_000, "7" * 300_000 + ".x", "1." + " " * 300_000, "\n7" * 150_000, "7.\n" * 99_999]
)
@pytest.mark.parametrize("convention", ["default", "reference"])
def test_parse_is_linear(text, convention):
    start = time.process_time()
    parse_instructions(text, convention)
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\t ", "empty"),
        (words(3), "too_short"),
        (words(4), None),
        (words(150), None),
        (words(151), "too_long"),
        ("Look at the image and count birds.", "keyword"),
        ("How many IMAGES are in there?", "keyword"),
        ("The graph, below, shows speed over time.", "keyword"),
        ("Please go\nto the next page now.", "keyword"),
        ("Draw a line of length 5.", "keyword"),
        ("A drawer holds 5 red socks.", None),
        ("Plotting aside, find the roots of x.", None),
        ("What is the area of a paragraph?", None),
        ("write a program that adds numbers", "write_a_program"),
        ("WRITE A PROGRAM that adds numbers", "write_a_program"),
        ("Please write a program for it.", None),
        ("$x$ is a number, find it.", "leading_punctuation"),
        ("\\frac{1}{2} of the class left.", "leading_punctuation"),
        ("(a) Find the sum of all.", "leading_punctuation"),
        ("*Bold* words come before the rest.", "leading_punctuation"),
        ("Été comme hiver, il fait beau.", "leading_non_ascii"),
        ("é is the fifth letter here.", "leading_non_ascii"),
        ("3 apples cost how much money?", None),
    ],
)
@pytest.mark.parametrize("lowercase", [False, True])
def test_filter_cases(text, reason, lowercase):
    kept, found = filter_instruction(text, lowercase_like_reference=lowercase)
    assert found == reason
    assert (kept is None) == (reason is not None)


def test_filter_keeps_case_unless_told_otherwise():
    text = "  in triangle\n $ABC$ has   $\\Delta$ any area? "
    assert filter_instruction(text) == ("in triangle $ABC$ has $\\Delta$ any area?", None)
    assert filter_instruction(text, lowercase_like_reference=True) == (
        "In triangle $abc$ has $\\delta$ any area?",
        None,
    )


KEYWORDS = "image images graph graphs picture pictures file files map maps draw plot".split() + ["go to"]


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [*KEYWORDS, "Write", "a", "program", "the", "Sum", "$x$", "é", "ﬁnd", "\n", "\u00a0", "3", "-", "ẞ", "K"]
        ),
        max_size=12,
    ).map(" ".join)
    | st.text(max_size=40)
)
def test_filter_decides_as_the_rules_of_the_original(text):
    item = re.sub(r"\s+", " ", text).strip().capitalize()
    keep = (
        item != ""
        and 3 < len(item.split()) <= 150
        and not any(re.search(rf"\b({word})\b", item, flags=re.IGNORECASE) for word in KEYWORDS)
        and not item.startswith("Write a program")
        and item[0] not in string.punctuation
        and item[0].isascii()
    )
    assert filter_instruction(text, lowercase_like_reference=True)[0] == (item if keep else None)
    assert (filter_instruction(text)[1] is None) == keep


def test_examples_take_at_most_two_generated_and_are_shuffled():
    seeds = [f"seed {i}" for i in range(20)]
    for n_generated, expected in ((0, 0), (1, 1), (2, 2), (9, 2)):
        generated = [f"own {i}" for i in range(n_generated)]
        positions = set()
        for draw in range(200):
            examples = draw_examples(random.Random(draw), generated, seeds)
            assert len(examples) == len(set(examples)) == 8
            own = [i for i, text in enumerate(examples) if text.startswith("own")]
            assert len(own) == expected
            positions.update(own)
        assert positions == (set(range(8)) if expected else set())


def test_examples_need_enough_seeds():
    with pytest.raises(ValueError, match="needs 7 seeds, found 6"):
        draw_examples(random.Random(0), ["own"], ["seed"] * 6)


def test_as_many_seeds_as_examples_are_enough():
    assert sorted(draw_examples(random.Random(0), [], list("abcdefgh"))) == list("abcdefgh")


def test_messages_number_the_examples_and_end_with_the_next_number():
    messages = compose_messages(["What is\n 1 + 1: ", "Find x"], PromptTemplate("Be a teacher.", "Write more:\n"))
    assert messages == [
        {"role": "system", "content": "Be a teacher."},
        {"role": "user", "content": "Write more:\n1. What is 1 + 1\n2. Find x\n3."},
    ]
    assert [m["role"] for m in compose_messages(["Find x"], PromptTemplate("", "More:\n"))] == ["user"]


def test_a_long_prompt_loses_examples_and_keeps_its_end():
    template = PromptTemplate("", "More:\n")
    examples = ["short one here", "long " * 100, "another short one"]

    def tokenize(messages):
        return messages[0]["content"].split()

    ids, shown = fit_prompt(examples, template, tokenize, max_tokens=20)
    assert shown == 2 and ids[-1] == "3." and "long" not in ids
    cut, shown = fit_prompt(examples, template, tokenize, max_tokens=20, overlong="truncate")
    assert shown == 3 and len(cut) == 20 and cut[-1] == "long"
    with pytest.raises(ValueError, match="at most 3 tokens"):
        fit_prompt(examples, template, tokenize, max_tokens=3)


def test_a_prompt_may_be_as_long_as_the_limit():
    def tokenize(messages):
        return [0] * (1000 + 12 * messages[0]["content"].count("x"))

    template = PromptTemplate("", "More:\n")
    assert fit_prompt(["x", "x"], template, tokenize) == ([0] * 1024, 2)
    assert fit_prompt(["x", "x"], template, tokenize, max_tokens=1023) == ([0] * 1012, 1)
    ids, shown = fit_prompt(["x", "x"], template, lambda messages: [*tokenize(messages), 1])
    assert (len(ids), shown) == (1013, 1)


def test_shipped_prompt_file_is_valid():
    template = load_template()
    assert template.system and template.user.endswith("\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not UTF-8 JSON"),
        (b"\xff\xfe", "not UTF-8 JSON"),
        (json.dumps(["a"]), r"found \['a'\]"),
        (json.dumps({"user": "x\n"}), "system is not set"),
        (json.dumps({"system": "", "user": "x\n", "extra": 1}), "extra"),
        (json.dumps({"system": None, "user": "x\n"}), "system must be a valid string"),
        (json.dumps({"system": "", "user": "no newline"}), "end with a line break"),
        (json.dumps({"system": "", "user": " \n"}), "end with a line break"),
    ],
)
def test_bad_prompt_files_are_refused(tmp_path, content, message):
    path = tmp_path / "prompt.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        load_template(path)


def test_missing_prompt_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.json does not exist"):
        load_template(tmp_path / "nowhere.json")
