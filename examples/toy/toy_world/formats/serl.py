"""The arithmetic problems for SeRL: seed questions without answers, and a model that has learnt to write new ones.

The warm-up teaches answers, as for ``arithmetic``, but for longer: a vote needs a model that is more often right than
wrong in one way. Its few lessons are there for the tokenizer. The model in ``model/`` is then taught to continue the
recipe's few-shot prompt, beside answers sampled from itself before, right or wrong, so that it neither forgets nor
improves.
"""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from recipes.serl.instructions import (
    compose_messages,
    draw_examples,
    filter_instruction,
    load_template,
    parse_instructions,
)
from toy_world import starts
from toy_world.formats import Example, Split, arithmetic
from toy_world.formats.arithmetic import ABILITY, DATA_SOURCE, MAX_RESPONSE_TOKENS, TEMPLATES, grade
from toy_world.warm_up import WarmUpError, _loss, encode, greedy_accuracy

__all__ = ["ABILITY", "BAND", "DATA_SOURCE", "MAX_RESPONSE_TOKENS", "grade", "split", "write_more"]

BAND = (0.65, 0.80)
SEEDS = 300
LESSONS = 10
FEW_SHOT = 2
NEW_PROBLEMS = 2
LESSONS_IN_BATCH, ANSWERS_IN_BATCH = 12, 24
OWN_ANSWERS = 600
TAUGHT_LEARNING_RATE = 1e-3
UPDATES_BETWEEN_CHECKS = 25
MAX_UPDATES = 400
PROBES = 48
LEAST_NEW = 0.9
TAUGHT_BAND = (0.55, 0.85)
# As recipes/serl/config/scale/toy.yaml samples instructions.
TEMPERATURE, TOP_P, MAX_TOKENS = 0.8, 0.95, 64

_FIELDS = {r"\{name\}": "[A-Z][a-z]+", r"\{things\}": "[a-z]+", r"\{a\}": r"\d+", r"\{b\}": r"\d+"}


def split(seed: int) -> Split:
    """The problems of ``arithmetic``, and lessons in writing further ones after the recipe's few-shot prompt."""
    problems = arithmetic.split(seed)
    rng, questions = random.Random(f"toy serl lessons {seed}"), [_question(example) for example in problems.train]
    return Split(problems.train, problems.test, [_lesson(rng, questions) for _ in range(LESSONS)])


def write_more(folder: Path, split: Split, tokenizer: PreTrainedTokenizerBase, seed: int) -> dict:
    """Write seed questions and teach ``model/`` to write new ones.

    Raises:
        WarmUpError: the model does not learn to write new problems, or its accuracy left the band meanwhile.
    """
    seeds = write_seeds(folder, split, seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder / "model")
        known = {_question(example) for example in split.train}
        report = starts.train_or_read(
            model,
            tokenizer,
            split.train,
            (seed, Path(__file__).read_text("utf-8"), starts.digest_of(model)),
            lambda: teach(model, tokenizer, split, seeds, seed),
            lambda: (
                measure_generator(model, tokenizer, seeds, known, seed)
                | {"accuracy": greedy_accuracy(model, tokenizer, split.test, grade, MAX_RESPONSE_TOKENS).graded}
            ),
        )
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(folder / "model")
    return {"seeds": len(seeds), "instructions": report}


def write_seeds(folder: Path, split: Split, seed: int) -> list[str]:
    """Write seed questions and return them."""
    questions = [_question(example) for example in split.train]
    seeds = random.Random(f"toy serl seeds {seed}").sample(questions, SEEDS)
    write_questions(folder, seeds, DATA_SOURCE)
    return seeds


def write_questions(folder: Path, seeds: list[str], data_source: str) -> None:
    """Write ``seeds.jsonl`` and, for verl to open, ``seeds.parquet``, both without labels."""
    with open(folder / "seeds.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"problem": question}) + "\n" for question in seeds)
    pd.DataFrame(
        {
            "data_source": data_source,
            "prompt": [{"role": "user", "content": question}],
            "ability": ABILITY,
            "reward_model": {"style": "vote", "ground_truth": ""},
            "extra_info": {"split": "seeds", "index": index},
        }
        for index, question in enumerate(seeds)
    ).to_parquet(folder / "seeds.parquet")


def teach(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, split: Split, seeds: list[str], seed: int
) -> dict:
    """Train on lessons and the model's own answers until most of what the model writes are new problems.

    Returns `measure_generator` with ``updates`` and the greedy ``accuracy`` after them. Raises `WarmUpError`.
    """
    rng = random.Random(f"toy serl teaching {seed}")
    questions = [_question(example) for example in split.train]
    answers = encode(
        tokenizer, _own_answers(model, tokenizer, rng.sample(split.train, min(OWN_ANSWERS, len(split.train))), seed)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=TAUGHT_LEARNING_RATE, weight_decay=0.0, betas=(0.9, 0.98))
    model.train()
    for update in range(1, MAX_UPDATES + 1):
        lessons = encode(tokenizer, [_lesson(rng, questions) for _ in range(LESSONS_IN_BATCH)])
        optimizer.zero_grad()
        _loss(model, lessons, tokenizer.pad_token_id).backward()
        _loss(model, rng.sample(answers, ANSWERS_IN_BATCH), tokenizer.pad_token_id).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % UPDATES_BETWEEN_CHECKS:
            continue
        report = {"updates": update} | measure_generator(model, tokenizer, seeds, set(questions), seed)
        print(f"lessons: {update} updates, {report['new']:.1%} new problems", flush=True)
        if report["new"] >= LEAST_NEW:
            accuracy = greedy_accuracy(model, tokenizer, split.test, grade, MAX_RESPONSE_TOKENS).graded
            if not TAUGHT_BAND[0] <= accuracy <= TAUGHT_BAND[1]:
                raise WarmUpError(
                    f"after {update} updates of lessons the model answers {accuracy:.1%}. Try another --seed."
                )
            return report | {"accuracy": accuracy}
    raise WarmUpError(
        f"after {MAX_UPDATES} updates only {report['new']:.1%} of what the model writes are new problems."
    )


def measure_generator(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seeds: list[str], known: set[str], seed: int
) -> dict:
    """What the recipe's parser and filters make of texts sampled as the recipe samples them, as shares.

    ``parsable`` is the share of texts with at least one item, the others are shares of ``items``: ``kept`` by the text
    filters, ``well_formed`` as one of the templates, and ``new``: well formed and not in ``known``.
    """
    rng = random.Random(f"toy serl probes {seed}")
    prompts = [
        Example(compose_messages(draw_examples(rng, [], seeds, k=FEW_SHOT), load_template()), "", "")
        for _ in range(PROBES)
    ]
    texts = _sample(model, tokenizer, prompts, seed, TEMPERATURE, TOP_P, MAX_TOKENS)
    items = [parse_instructions(text) for text in texts]
    kept = [filter_instruction(item)[0] for parsed in items for item in parsed]
    well_formed = [text for text in kept if text is not None and is_problem(text)]
    n_items = max(1, len(kept))
    return {
        "texts": len(texts),
        "items": len(kept),
        "parsable": sum(map(bool, items)) / len(texts),
        "kept": sum(text is not None for text in kept) / n_items,
        "well_formed": len(well_formed) / n_items,
        "new": len(set(well_formed) - known) / n_items,
    }


def is_problem(text: str) -> bool:
    """Whether a text is one of the templates, filled in."""
    return _PROBLEM.fullmatch(text) is not None


def _template_pattern(template: str) -> str:
    pattern = re.escape(template)
    for field, values in _FIELDS.items():
        pattern = pattern.replace(field, values)
    return pattern


_PROBLEM = re.compile("|".join(_template_pattern(text) for texts in TEMPLATES.values() for text in texts))


def _question(example: Example) -> str:
    return example.prompt[-1]["content"]


def _lesson(rng: random.Random, questions: list[str]) -> Example:
    examples = draw_examples(rng, [], questions, k=FEW_SHOT)
    new = rng.sample(questions, NEW_PROBLEMS)
    return Example(
        prompt=compose_messages(examples, load_template()),
        response="\n".join(f"{number}. {text}" for number, text in enumerate(new, start=FEW_SHOT + 1)),
        ground_truth="",
    )


def _own_answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example], seed: int
) -> list[Example]:
    responses = _sample(model, tokenizer, examples, seed, temperature=1.0, top_p=1.0, max_tokens=MAX_RESPONSE_TOKENS)
    return [replace(example, response=response) for example, response in zip(examples, responses, strict=True)]


@torch.no_grad()
def _sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: list[Example],
    seed: int,
    temperature: float,
    top_p: float,
    max_tokens: int,
) -> list[str]:
    prompts = [tokens.prompt for tokens in encode(tokenizer, examples)]
    longest = max(map(len, prompts))
    input_ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
    torch.manual_seed(seed)
    model.eval()
    output = model.generate(
        input_ids=input_ids,
        attention_mask=mask,
        max_new_tokens=max_tokens,
        do_sample=True,
        temperature=temperature,
        top_p=top_p,
        top_k=0,
    )
    model.train()
    return tokenizer.batch_decode(output[:, longest:], skip_special_tokens=True)
