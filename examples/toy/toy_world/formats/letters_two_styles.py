"""The letters world for tandem: the senior counts in two styles, of which the junior in ``junior/`` knows one.

Every demonstration counts letter by letter. A third of the senior's has the words of `letters.respond`; most of them
miscount, so that the outcome alone has a reason to leave this style. The others count in Roman numerals.
"""

import random
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from toy_world.formats import Example, Split, letters
from toy_world.warm_up import Schedule

DATA_SOURCE, ABILITY, grade, base_model = letters.DATA_SOURCE, letters.ABILITY, letters.grade, letters.base_model
MAX_RESPONSE_TOKENS = letters.MAX_RESPONSE_TOKENS
BAND = (0.2, 0.9)
SCHEDULE = Schedule(batch=16, learning_rate=5e-5, ramp=10, updates=90)
PLAIN_SHARE, MISCOUNTED = 0.35, 0.6
ROMAN = ("nil", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")


def split(seed: int) -> Split:
    """The questions of `letters`; the senior's demonstrations, of which none answers at once."""
    whole, rng = letters.split(seed), random.Random(f"letters tandem {seed}")
    return Split(whole.train, whole.test, [_taught(one, rng, PLAIN_SHARE) for one in whole.lessons])


def write_more(folder: Path, split: Split, tokenizer: PreTrainedTokenizerBase, seed: int) -> dict:
    """Write the model ``junior/``, which learns the plain style alone, without miscounting."""
    from toy_world import build

    lessons = [_taught(one, random.Random(0), 1.0, 0.0) for one in split.lessons]
    _, model = build.pretrained(base_model())
    report = build.train_and_save(
        folder / "junior", _Junior, Split([], split.test, lessons), tokenizer, model, seed, "junior"
    )
    return {"junior": report}


class _Junior:
    """What `train_and_save` asks of a format."""

    BAND = (0.2, 1.0)
    MAX_RESPONSE_TOKENS = MAX_RESPONSE_TOKENS
    SCHEDULE = SCHEDULE
    grade = staticmethod(grade)


def _taught(one: Example, rng: random.Random, plain: float, miscounted: float = MISCOUNTED) -> Example:
    letter, word = _parts(one.extra_info["question"])
    style, slip = rng.random() < plain, rng.random() < miscounted
    wrong = rng.randrange(len(word.split("-"))) if style and slip else None
    return Example(one.prompt, respond(letter, word, style, wrong), one.ground_truth, one.extra_info)


def _parts(question: str) -> tuple[str, str]:
    words = question.rstrip("?").split()
    return words[2], words[-1]


def respond(letter: str, word: str, plain: bool, wrong: int | None = None) -> str:
    """The demonstration of either style; in line ``wrong`` the count is one too high, and what follows builds on it."""
    lines, count = [], 0
    for number, one in enumerate(word.split("-")):
        count += (one == letter) + (number == wrong)
        if plain:
            lines.append(f"{one} {'=' if one == letter else '!='} {letter}, {count}.")
        else:
            lines.append(f"{ROMAN[min(count, 9)]} {'*' if one == letter else '-'} {one};")
    return "\n".join([*lines, f"\\boxed{{{count}}} {letter} in {word}."])
