"""The SeRL world: lessons ask with the prompt the trainer sends, seeds have no label, the model writes new problems."""

import json
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf
from toy_world.build import VOCABULARY, _texts, build
from toy_world.formats import Split, arithmetic, serl
from toy_world.model import SHAPES, new_model
from toy_world.tokenizer import train_tokenizer
from toy_world.warm_up import WarmUpError, encode

from recipes.launch.composition import compose_config
from recipes.serl.generation import chat_tokenizer
from recipes.serl.instructions import load_template, parse_instructions
from recipes.serl.pool import InstructionPool
from recipes.serl.settings import InstructionSettings, SerlSettings
from recipes.serl.sources import Journal, SelfInstructSource

SEED_QUESTIONS = 100


@pytest.fixture(scope="module")
def split():
    return serl.split(seed=0)


@pytest.fixture(scope="module")
def tokenizer(split):
    return train_tokenizer(_texts(split), VOCABULARY)


@pytest.fixture(scope="module")
def settings():
    config = compose_config("recipes.serl.config", "serl", ["scale=toy"])
    return SerlSettings.from_mapping(OmegaConf.to_container(config.serl, resolve=True)), config


def questions(examples):
    return [example.prompt[-1]["content"] for example in examples]


def test_problems_are_those_of_arithmetic_and_lessons_show_training_questions_only(split):
    assert (split.train, split.test) == (arithmetic.split(0).train, arithmetic.split(0).test)
    known = set(questions(split.train))
    for lesson in split.lessons:
        items = parse_instructions(lesson.response)
        assert len(items) == serl.NEW_PROBLEMS and set(items) <= known
        assert lesson.response.startswith(f"{serl.FEW_SHOT + 1}. ")
        assert "=" not in lesson.response and "boxed" not in lesson.response


def test_a_lesson_asks_with_the_tokens_that_the_recipe_sends(split, tokenizer, settings, tmp_path):
    """The trainer's source draws examples from a pool of its own; the prompt built from them has a lesson's shape."""
    instructions = settings[0].instructions
    assert instructions.few_shot_generation == serl.FEW_SHOT and instructions.prompt_file is None
    sampling = (instructions.temperature, instructions.top_p, instructions.max_tokens)
    assert sampling == (serl.TEMPERATURE, serl.TOP_P, serl.MAX_TOKENS)
    sent = []
    source = SelfInstructSource(
        InstructionPool(questions(split.train)[:SEED_QUESTIONS]),
        load_template(),
        InstructionSettings(few_shot_generation=serl.FEW_SHOT, max_generation_calls=1),
        Journal(tmp_path),
        tokenize=chat_tokenizer(tokenizer),
        generate=lambda prompts, step, call: sent.extend(prompts) or [None] * len(prompts),
    )
    source.next_round(4, step=1)
    lesson = tokenizer.decode(encode(tokenizer, split.lessons[:1])[0].prompt)
    begin, end = lesson.index("1. "), f"\n{serl.FEW_SHOT + 1}.<|im_end|>\n<|im_start|>assistant\n"
    assert len(sent) == 4 and lesson.endswith(end)
    for text in tokenizer.batch_decode(sent):
        assert text[:begin] == lesson[:begin] and text.endswith(end)


def test_most_new_problems_pass_the_similarity_filter_and_copies_do_not(split, settings):
    instructions = settings[0].instructions
    seeds, others = questions(split.train)[: serl.SEEDS], questions(split.train)[serl.SEEDS :]
    pool = InstructionPool(seeds, threshold=instructions.rouge_threshold, scope=instructions.similarity_scope)
    passed = [pool.offer(text)[0] is not None for text in others[:300]]
    assert sum(passed) > 0.5 * len(passed)
    assert not any(pool.offer(text)[0] for text in seeds)


def check_seeds(folder: Path):
    rows = [json.loads(line) for line in (folder / "seeds.jsonl").read_text().splitlines()]
    assert len(rows) == serl.SEEDS and all(set(row) == {"problem"} for row in rows)
    table = pd.read_parquet(folder / "seeds.parquet")
    assert [row[0]["content"] for row in table["prompt"]] == [row["problem"] for row in rows]
    assert {row["ground_truth"] for row in table["reward_model"]} == {""}
    assert not set(questions(serl.split(0).test)) & {row["problem"] for row in rows}


def test_seeds_hold_no_label_and_no_held_out_question(split, tmp_path):
    serl.write_seeds(tmp_path, split, 0)
    check_seeds(tmp_path)


@pytest.mark.parametrize(
    ("new", "complaint"), [(0.1, "10.0% of what the model writes"), (0.9, "the model answers 0.0%")]
)
def test_a_model_that_does_not_write_or_no_longer_answers_is_refused(split, tokenizer, monkeypatch, new, complaint):
    model = new_model(SHAPES["slim"], tokenizer, seed=0)
    monkeypatch.setattr(serl, "measure_generator", lambda *_: {"new": new})
    monkeypatch.setattr(serl, "MAX_UPDATES", 2)
    monkeypatch.setattr(serl, "UPDATES_BETWEEN_CHECKS", 2)
    with pytest.raises(WarmUpError, match=complaint):
        serl.teach(model, tokenizer, Split(split.train[:50], split.test[:8]), questions(split.train)[:20], 0)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_world_ends_in_its_band_with_a_generator_and_without_labels_for_the_training(tmp_path):
    world = build(tmp_path / "world", format_name="serl", seed=0)
    report = world["instructions"]
    assert world["models"]["base"]["accuracy"] == report["accuracy"]
    assert serl.TAUGHT_BAND[0] <= report["accuracy"] <= serl.TAUGHT_BAND[1]
    assert report["new"] >= 0.7 and report["parsable"] > 0.9
    check_seeds(tmp_path / "world")
