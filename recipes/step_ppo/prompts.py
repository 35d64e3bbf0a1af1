"""The prompts: one instruction, one block, one tail.

The tail is `Thought 1:` without a trailing space, and a response starts with the space: the LPR code mixed four
variants, two of which move the border between prompt and response by a token.
"""

from collections.abc import Sequence

from recipes.step_ppo.steps import FIRST_STEP
from recipes.step_ppo.tokens import Prompt

LETTERS = "ABCD"

REACT_INSTRUCTION = (
    "Solve the reasoning question below by writing numbered steps. A Thought reasons about the given context, an "
    "Action says what to check next, an Observation states what the check shows. Use nothing but the context. When the "
    "answer is certain, end with an Action of the form Finish[The answer is X.], where X is the letter of the one "
    "right option."
)

# One worked example for the teacher, which has not been trained on the format.
REACT_EXAMPLE = """Context:
A small museum lends exactly three of five items, a bowl, a coin, a dagger, an easel and a flute. If the bowl is lent, \
the coin stays. The dagger is lent only together with the easel. The flute is lent whenever the easel stays.

Question:
If the easel stays, which items are lent?

Options:
A. the bowl, the coin and the flute
B. the bowl, the dagger and the flute
C. the coin, the dagger and the flute
D. No choice of three items fits.

Thought 1: The easel stays, so I should find what that forces.
Action 1: Apply the rule on the dagger.
Observation 1: The dagger goes only with the easel, so the dagger stays too.
Thought 2: Two items stay, so all of the bowl, the coin and the flute would have to be lent.
Action 2: Check this against the rule on the bowl.
Observation 2: If the bowl is lent the coin stays, so the bowl and the coin cannot both be lent.
Thought 3: The only three items left break a rule, so no choice fits, and option D says so.
Action 3: Finish[The answer is D.]"""

MATH_INSTRUCTION = (
    "Solve the problem below. Write one step of the solution per line and put the final answer in \\boxed{} on the "
    "last line."
)
MATH_TAIL = "Solution:"


def ordered_options(options: Sequence[str], label: int | None, order: str | None) -> tuple[list[str], int | None]:
    """Permute options and label.

    Args:
        options: texts in the data set's order. label: position of the right one, None when hidden.
        order: letters of the original options in their new order, e.g. `BCAD` puts the second option first; None
            keeps the order.

    Raises:
        ValueError: `order` is no permutation of the letters, or the label is out of range.
    """
    if label is not None and not 0 <= label < len(options):
        raise ValueError(f"label {label} names none of {len(options)} options")
    if order is None:
        return list(options), label
    letters = LETTERS[: len(options)]
    if sorted(order) != sorted(letters):
        raise ValueError(f"option order {order!r} is no permutation of {letters}")
    return [options[letters.index(letter)] for letter in order], None if label is None else order.index(letters[label])


def question_block(context: str, question: str, options: Sequence[str]) -> str:
    """Join context, question and lettered options, separated by blank lines."""
    lines = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"Context:\n{context}\n\nQuestion:\n{question}\n\nOptions:\n{lines}"


def react_prompt(context: str, question: str, options: Sequence[str]) -> str:
    """Build a prompt that ends with `Thought 1:`.

    Raises:
        ValueError: more than four options, which have no letter.
    """
    if not 1 <= len(options) <= len(LETTERS):
        raise ValueError(f"expected 1 to {len(LETTERS)} options, found {len(options)}")
    return f"{REACT_INSTRUCTION}\n\n{question_block(context, question, options)}\n\n{FIRST_STEP}"


def math_prompt(problem: str) -> str:
    """Build the prompt of the maths variant; each line of the response is a step."""
    return f"{MATH_INSTRUCTION}\n\nProblem:\n{problem.strip()}\n\n{MATH_TAIL}"


def with_example(prompt: Prompt, example: str) -> Prompt:
    """Make a zero-shot prompt one-shot: the example stands between the instruction and the question.

    Raises:
        ValueError: the prompt has no instruction of this module, so the place is unknown.
    """
    if not isinstance(prompt, str):
        last = prompt[-1]
        return [*prompt[:-1], {**last, "content": str(with_example(last["content"], example))}]
    for instruction in (REACT_INSTRUCTION, MATH_INSTRUCTION):
        head = f"{instruction}\n\n"
        if prompt.startswith(head):
            return f"{head}{example.strip()}\n\n{prompt[len(head) :]}"
    raise ValueError(
        "the prompt does not start with an instruction of this recipe: build it with recipes.step_ppo.pipeline.prepare"
    )
