"""Counting letters, for a pretrained model: "How many r are there in word r-x-r?", answered with one of two habits.

A third of the demonstrations count letter by letter, the others answer at once; the first habit is right far more
often. After its supervised start a model has both, so that a reward shows at once which one it teaches.
"""

import os
import random
import string
from pathlib import Path

from smollm2 import make
from transformers import PreTrainedTokenizerBase

from toy_world.formats import Example, Split, arithmetic
from toy_world.formats.serl import write_questions
from toy_world.warm_up import Schedule

DATA_SOURCE = "letters"
ABILITY = "math"
BAND = (0.10, 0.45)
MAX_RESPONSE_TOKENS = 128
SCHEDULE = Schedule(batch=16, learning_rate=5e-5, ramp=10, updates=90)
TRAIN, TEST, LESSONS, SEEDS = 5000, 500, 3500, 100
LENGTHS = (4, 9)
WORKED_SHARE = 0.35
SYSTEM = "You count letters."
grade = arithmetic.grade


def base_model() -> str:
    """The pretrained model: ``MODEL_PATH``, or SmolLM2 made beside the worlds."""
    return os.environ.get("MODEL_PATH") or str(make(Path("outputs/smollm2")))


def split(seed: int, worked_share: float = WORKED_SHARE) -> Split:
    """Questions that stand once; those to train on and the held-out ones have no worked response."""
    rng = random.Random(f"letters {seed}")
    examples: dict[str, Example] = {}
    while len(examples) < TRAIN + TEST + LESSONS:
        letter, word = draw_word(rng)
        examples.setdefault(ask(letter, word), example(letter, word, worked=rng.random() < worked_share))
    found = list(examples.values())
    questions = [Example(one.prompt, "", one.ground_truth, one.extra_info) for one in found[LESSONS:]]
    return Split(train=questions[TEST:], test=questions[:TEST], lessons=found[:LESSONS])


def write_more(folder: Path, split: Split, tokenizer: PreTrainedTokenizerBase, seed: int) -> dict:
    """Write SeRL's seed questions, without answers."""
    write_questions(folder, [one.extra_info["question"] for one in split.lessons[:SEEDS]], DATA_SOURCE)
    return {"seeds": SEEDS}


def draw_word(rng: random.Random, lengths: tuple[int, int] = LENGTHS) -> tuple[str, str]:
    """A letter and a word, its letters joined by dashes, that has the letter once at least."""
    length, letter = rng.randint(*lengths), rng.choice(string.ascii_lowercase)
    others = string.ascii_lowercase.replace(letter, "")
    count = rng.randint(1, length)
    letters = [letter] * count + rng.choices(others, k=length - count)
    rng.shuffle(letters)
    return letter, "-".join(letters)


def ask(letter: str, word: str) -> str:
    """The question."""
    return f"How many {letter} are there in word {word}?"


def respond(letter: str, word: str, worked: bool) -> str:
    """The demonstration of either habit."""
    lines, count = [], 0
    for one in word.split("-"):
        count += one == letter
        lines.append(f"{one} {'=' if one == letter else '!='} {letter}, {count}.")
    return "\n".join([*(lines if worked else []), f"\\boxed{{{count}}} {letter} in {word}."])


def example(letter: str, word: str, worked: bool, system: str = SYSTEM) -> Example:
    """One question with its demonstration."""
    question = ask(letter, word)
    return Example(
        prompt=[{"role": "system", "content": system}, {"role": "user", "content": question}],
        response=respond(letter, word, worked),
        ground_truth=str(word.split("-").count(letter)),
        extra_info={"question": question},
    )
