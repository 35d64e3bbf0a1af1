"""The world of the two roles: what each is taught is what the recipe asks of it, and reads out of it."""

import random
import re

import pytest
from omegaconf import OmegaConf
from toy_world.formats import pasodoble
from toy_world.tokenizer import train_tokenizer

from recipes.pasodoble import config as recipe_config
from recipes.pasodoble.parsing import extract_answer, extract_question, find_fault
from recipes.pasodoble.prompts import Prompts, render


@pytest.fixture(scope="module")
def split():
    return pasodoble.split(seed=0)


@pytest.fixture(scope="module")
def lessons(split):
    return pasodoble.proposer_lessons(random.Random(0), split.train, 300)


@pytest.fixture(scope="module")
def toy():
    (folder,) = recipe_config.__path__
    return OmegaConf.load(f"{folder}/scale/toy.yaml")


def test_prompts_are_those_of_the_recipe(split, lessons, toy):
    prompts = Prompts.from_config(OmegaConf.to_container(toy.pasodoble.prompts))
    assert lessons[0].prompt == prompts.for_proposer(lessons[0].ground_truth)
    assert split.train[0].prompt == prompts.for_solver(split.train[0].extra_info["question"])


def test_a_lesson_is_a_proposal_without_fault(lessons):
    for lesson in lessons:
        question, answer = extract_question(lesson.response), extract_answer(lesson.response)
        assert find_fault(question, answer) is None
        assert pasodoble.grade_proposal(lesson.response, lesson.ground_truth)


def test_the_answer_stands_in_the_text_and_the_numbers_of_the_question_with_it(lessons):
    for lesson in lessons:
        numbers = re.findall(r"\d+", extract_question(lesson.response))
        notes = [re.findall(r"\d+", note) for note in lesson.ground_truth.split(".") if note]
        assert [*numbers, extract_answer(lesson.response)] in notes
        assert len(notes) == pasodoble.NOTES


@pytest.mark.parametrize(
    ("question", "answer", "right"),
    [
        ("Tom has 31 pens and buys 7 more. How many pens does Tom have?", "38", True),
        ("Tom has 31 pens and buys 7 more. How many pens does Tom have?", "39", False),
        ("Tom has 31 pens and gives away 7. How many pens are left?", "38", False),
        ("Tom has 32 pens and buys 7 more. How many pens does Tom have?", "39", False),
        ("Tom had 12 pens and lost 6. How many pens does Tom have?", "6", False),
        ("Tom has pens.", "38", False),
    ],
)
def test_grading_of_a_proposal(question, answer, right):
    response = f"<think>\n...\n</think>\n<problem>{question}</problem>\n<answer>\\boxed{{{answer}}}</answer>"
    assert pasodoble.grade_proposal(response, "pens: 31 + 7 = 38. pens: 12 - 6 = 6.") is right


def test_responses_begin_where_the_prompt_of_the_recipe_ends(split, lessons):
    texts = [message["content"] for example in split.train[:200] + lessons for message in example.prompt]
    tokenizer = train_tokenizer(texts + [example.response for example in split.train[:200] + lessons], 512)
    for example in (split.train[0], lessons[0]):
        opened = render(tokenizer, example.prompt)
        closed = tokenizer.apply_chat_template(example.prompt, tokenize=False, add_generation_prompt=True)
        assert (closed + example.response).startswith(opened)
        ids = tokenizer(opened)["input_ids"]
        assert tokenizer(closed + example.response)["input_ids"][: len(ids)] == ids


def test_no_problem_of_the_knowledge_is_held_out(split):
    held_out = {tuple(e.extra_info[k] for k in ("operation", "first", "second")) for e in split.test}
    for lesson in pasodoble.proposer_lessons(random.Random(1), split.train, 500):
        for a, sign, b in re.findall(r"(\d+) ([+-]) (\d+) =", lesson.ground_truth):
            assert (sign, int(a), int(b)) not in held_out
