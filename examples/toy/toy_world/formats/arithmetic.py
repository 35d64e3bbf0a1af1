"""One-step word problems in addition and subtraction, answered in one worked sentence with a boxed result."""

import random
import re

from toy_world.formats import Example, Split

DATA_SOURCE = "toy_arithmetic"
ABILITY = "math"
BAND = (0.22, 0.35)
MAX_RESPONSE_TOKENS = 32
TRAIN_SIZE = 4500
TEST_SIZE = 500
FIRST = range(10, 300)
SECOND = range(1, 10)

NAMES = ("Tom", "Anna", "Ben", "Mia", "Sam", "Lena", "Max", "Eva")
THINGS = ("apples", "books", "coins", "cards", "pens", "shells", "stamps", "stones")
TEMPLATES = {
    "+": (
        "{name} has {a} {things} and buys {b} more. How many {things} does {name} have?",
        "{name} finds {a} {things} and then {b} more. How many {things} are there?",
        "There are {a} {things} in a box. {name} adds {b}. How many {things} are in the box?",
    ),
    "-": (
        "{name} has {a} {things} and gives away {b}. How many {things} are left?",
        "There are {a} {things} in a box. {name} takes {b}. How many {things} are in the box?",
        "{name} had {a} {things} and lost {b}. How many {things} does {name} have?",
    ),
}
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


def split(seed: int) -> Split:
    """Draw the training and held-out problems; no (operation, first, second) triple stands in both."""
    rng = random.Random(f"toy arithmetic {seed}")
    triples = [(operation, a, b) for operation in TEMPLATES for a in FIRST for b in SECOND]
    chosen = rng.sample(triples, TRAIN_SIZE + TEST_SIZE)
    examples = [_example(rng, *triple) for triple in chosen]
    return Split(train=examples[TEST_SIZE:], test=examples[:TEST_SIZE])


def grade(response: str, ground_truth: str) -> bool:
    """Whether the last boxed answer of the response is exactly the ground truth."""
    boxes = _BOXED.findall(response)
    return bool(boxes) and boxes[-1].strip() == ground_truth


def _example(rng: random.Random, operation: str, a: int, b: int) -> Example:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    question = rng.choice(TEMPLATES[operation]).format(name=name, things=things, a=a, b=b)
    result = a + b if operation == "+" else a - b
    return Example(
        prompt=[{"role": "user", "content": question}],
        response=f"There are {a} {operation} {b} = {result} {things}. \\boxed{{{result}}}",
        ground_truth=str(result),
        extra_info={"question": question, "operation": operation, "first": a, "second": b},
    )
