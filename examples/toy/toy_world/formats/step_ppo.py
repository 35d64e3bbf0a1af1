"""Who faces where, in the ReAct format of the step_ppo recipe: each faces by the one before, the last is asked for.

A response goes from person to person, one Action and one Observation each, and every Observation uses the direction
found before: a slip anywhere makes the answer wrong. No chat template is put around the text; the prompt ends inside
`Thought 1:` and the response continues it after a space.

The warm-up sees lessons of a teacher who mostly takes two of the twelve turns for others. The policy inherits that: it
slips there more often than not, which a process reward can point at, and an outcome reward only at the end.
"""

import random
import re
from itertools import product

from toy_world.formats import Example, Split

DATA_SOURCE = "toy_step_ppo"
ABILITY = "logic"
BAND = (0.52, 0.70)
MAX_RESPONSE_TOKENS = 96
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TRAIN_SIZE = 3000
TEST_SIZE = 500
LESSONS = 9000
MISTAKE_SHARE = 0.9
HELD_OUT_SHARE = 0.2
NUMBERS_OF_TURNS = (2, 3, 4)

NAMES = ("Ann", "Ben", "Cem", "Dan", "Eva", "Fay", "Gus", "Hal")
DIRECTIONS = ("north", "east", "south", "west")
TURNS = {"right": 1, "opposite": 2, "left": 3}
MISTAKEN = {("left", "north"): "south", ("left", "south"): "north"}
LETTERS = "ABCD"
_LETTER = re.compile(r"[A-D]")

Chain = tuple[str, ...]
"""The first person's direction and the turns that lead to the others'."""


def split(seed: int) -> Split:
    """Draw the training and held-out problems; no first day with its sequence of links stands in both."""
    rng = random.Random(f"toy step_ppo {seed}")
    train: list[list[Chain]] = []
    test: list[list[Chain]] = []
    for number in NUMBERS_OF_TURNS:
        chains = list(product(DIRECTIONS, *[TURNS] * number))
        rng.shuffle(chains)
        border = int(HELD_OUT_SHARE * len(chains))
        test.append(chains[:border])
        train.append(chains[border:])
    return Split(
        train=_draw(rng, train, TRAIN_SIZE),
        test=_draw(rng, test, TEST_SIZE),
        lessons=_draw(rng, train, LESSONS, mistake_share=MISTAKE_SHARE),
    )


def grade(response: str, ground_truth: str) -> bool:
    """Whether exactly one letter A-D stands between the first `Finish` and a second one, and it is the right one."""
    parts = response.split("Finish", 2)
    return len(parts) > 1 and _LETTER.findall(parts[1]) == [ground_truth]


def turned(direction: str, turn: str) -> str:
    """Where one faces after a turn."""
    return DIRECTIONS[(DIRECTIONS.index(direction) + TURNS[turn]) % len(DIRECTIONS)]


def _draw(rng: random.Random, pools: list[list[Chain]], count: int, mistake_share: float = 0.0) -> list[Example]:
    """Examples with each number of turns equally often."""
    return [_example(rng, rng.choice(rng.choice(pools)), mistake_share) for _ in range(count)]


def _example(rng: random.Random, chain: Chain, mistake_share: float) -> Example:
    direction, *turns = chain
    names = rng.sample(NAMES, len(chain))
    facts = [f"{names[0]} faces {direction}."]
    lines = [f" {names[0]} faces {direction}."]
    for number, (before, name, turn) in enumerate(zip(names, names[1:], turns, strict=False), 1):
        facts.append(f"{name} faces {turn} of {before}.")
        lines.append(f"Action {number}: Find {name}.")
        found = turned(direction, turn)
        if rng.random() < mistake_share:
            found = MISTAKEN.get((turn, direction), found)
        lines.append(f"Observation {number}: {turn} of {direction} is {found}.")
        direction = found
    # Always in this order: to look a direction up is another skill, which so small a model learns long after.
    letter = LETTERS[DIRECTIONS.index(direction)]
    lines.append(f"Thought {len(turns) + 1}: {names[-1]} faces {direction}.")
    lines.append(f"Action {len(turns) + 1}: Finish[The answer is {letter}.]")
    listed = "\n".join(f"{name}. {option}" for name, option in zip(LETTERS, DIRECTIONS, strict=True))
    prompt = (
        f"Context:\n{' '.join(facts)}\n\nQuestion:\nWhere does {names[-1]} face?\n\nOptions:\n{listed}\n\nThought 1:"
    )
    return Example(
        prompt=[{"role": "user", "content": prompt}],
        response="\n".join(lines),
        ground_truth=letter,
        extra_info={"step_style": "react", "chain": list(chain)},
    )
