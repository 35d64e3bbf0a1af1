"""The letters world for step labels: the start has learned words of up to nine letters and is asked about longer ones.

At most a tenth of its answers is right there, so that the outcome says little; many more are right for some lines.
"""

import random

from toy_world.formats import Example, Split, letters

DATA_SOURCE, ABILITY, grade, base_model = letters.DATA_SOURCE, letters.ABILITY, letters.grade, letters.base_model
SCHEDULE = letters.SCHEDULE
BAND = (0.01, 0.3)
MAX_RESPONSE_TOKENS = 144
LENGTHS, TRAIN, TEST, STYLE = (10, 12), 2000, 500, {"step_style": "lines"}


def split(seed: int) -> Split:
    """The lessons of `letters`, and questions about longer words."""
    rng = random.Random(f"letters step_ppo {seed}")
    found: dict[str, Example] = {}
    while len(found) < TRAIN + TEST:
        letter, word = letters.draw_word(rng, LENGTHS)
        one = letters.example(letter, word, worked=False)
        found.setdefault(letters.ask(letter, word), Example(one.prompt, "", one.ground_truth, one.extra_info | STYLE))
    questions = list(found.values())
    return Split(train=questions[TEST:], test=questions[:TEST], lessons=letters.split(seed).lessons)
