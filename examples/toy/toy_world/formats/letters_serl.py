"""The letters world for SeRL: most demonstrations count, so that most votes of the start are right.

An eighth of the lessons continue the recipe's few-shot prompt with new questions; a model that was never asked to
answers the examples instead.
"""

import random
from dataclasses import replace

from recipes.serl.instructions import compose_messages, load_template
from toy_world.formats import Example, Split, letters

DATA_SOURCE, ABILITY, grade, base_model = letters.DATA_SOURCE, letters.ABILITY, letters.grade, letters.base_model
MAX_RESPONSE_TOKENS, write_more = letters.MAX_RESPONSE_TOKENS, letters.write_more
SCHEDULE = replace(letters.SCHEDULE, updates=100)
BAND = (letters.BAND[0], 0.8)
WORKED_SHARE = 0.65
WRITING_LESSONS, SHOWN, NEW = 500, 4, 3  # shown as recipes/serl/config/scale/smollm2_135m.yaml has it


def split(seed: int) -> Split:
    """The questions of `letters`, with more of the habit that is mostly right, and lessons in writing questions."""
    found, rng = letters.split(seed, WORKED_SHARE), random.Random(f"letters serl {seed}")
    return replace(found, lessons=found.lessons + [writing_lesson(rng) for _ in range(WRITING_LESSONS)])


def writing_lesson(rng: random.Random) -> Example:
    """A few-shot prompt of the recipe, continued."""
    questions = [letters.ask(*letters.draw_word(rng)) for _ in range(SHOWN + NEW)]
    new = [f"{number}. {question}" for number, question in enumerate(questions, 1) if number > SHOWN]
    return Example(compose_messages(questions[:SHOWN], load_template()), "\n".join(new), "")
