"""A Proposer that turns a note of a knowledge text into a word problem, and a Solver that has to calculate.

The knowledge is what sets the two apart: a note gives its result, so the Proposer can copy what the Solver, who sees
the question alone, must work out. Notes differ in difficulty, by a carry or none, and so do wordings for the Solver.
"""

import json
import random
import re
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from toy_world.formats import Example, Split, arithmetic
from toy_world.starts import digest_of
from toy_world.warm_up import greedy_accuracy, warm_up

DATA_SOURCE = "toy_pasodoble"
ABILITY = arithmetic.ABILITY
BAND = (0.22, 0.35)
MAX_RESPONSE_TOKENS = 48
grade = arithmetic.grade

DOCUMENTS = 300
LESSONS = 4000
NOTES = 1
PROPOSER_BAND = (0.8, 1.0)
PROPOSER_MAX_RESPONSE_TOKENS = 80

# As recipes/pasodoble/config/scale/toy.yaml has them.
PROPOSER_SYSTEM = "Write a problem, then its answer in a box."
PROPOSER_USER = "External knowledge: {knowledge}"
SOLVER_SYSTEM = "Answer"
SOLVER_BOX_REQUEST = " in a box."

_PROPOSAL = re.compile(r"</think>\n<problem>(.+)</problem>\n<answer>\\boxed\{(\d+)\}</answer>")
_NOTE = re.compile(r"(\d+) ([+-]) (\d+) = (\d+)")


def split(seed: int) -> Split:
    """The Solver's problems: those of the arithmetic format, in the words of the game."""
    problems = arithmetic.split(seed)
    return Split(
        train=[_solver_example(example) for example in problems.train],
        test=[_solver_example(example) for example in problems.test],
        # Both models have one tokenizer, and it must know the Proposer's words.
        lessons=proposer_lessons(random.Random(f"toy pasodoble words {seed}"), problems.train, 40, notes=3),
    )


def write_more(folder: Path, split: Split, tokenizer: PreTrainedTokenizerBase, seed: int) -> dict:
    """Write ``knowledge.jsonl``, whose texts hold no problem of the test file, and the model ``proposer/``."""
    rng = random.Random(f"toy pasodoble {seed}")
    documents = [rng.sample(split.train, NOTES) for _ in range(DOCUMENTS)]
    lines = (json.dumps({"text": knowledge_text(examples)}) for examples in documents)
    (folder / "knowledge.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    lessons = proposer_lessons(rng, split.train, LESSONS)
    unseen = [_proposer_example(examples[0], knowledge_text(examples)) for examples in documents]
    return {"documents": DOCUMENTS, "proposer": _warm_up_proposer(folder, lessons, unseen, tokenizer, seed)}


def knowledge_text(examples: list[Example]) -> str:
    """A text with one note for each problem."""
    return " ".join(f"{_things(example)}: {_calculation(example)}." for example in examples)


def grade_proposal(response: str, knowledge: str) -> bool:
    """Whether the response is one problem about a note of the text, with the right answer, which it does not show."""
    match = _PROPOSAL.search(response)
    if match is None:
        return False
    question, answer = match.groups()
    numbers = re.findall(r"\d+", question)
    notes = {(a, b, result): sign for a, sign, b, result in _NOTE.findall(knowledge)}
    sign = notes.get((*numbers, answer)) if len(numbers) == 2 else None
    return sign is not None and _sign_of(question) == sign and answer not in question


def proposer_lessons(rng: random.Random, problems: list[Example], count: int, notes: int = NOTES) -> list[Example]:
    """Proposals written to texts of ``notes`` notes made of ``problems``."""
    lessons = []
    while len(lessons) < count:
        examples = rng.sample(problems, notes)
        chosen = rng.choice(examples)
        if chosen.ground_truth not in _question(chosen):
            lessons.append(_proposer_example(chosen, knowledge_text(examples)))
    return lessons


def _warm_up_proposer(
    folder: Path, lessons: list[Example], unseen: list[Example], tokenizer: PreTrainedTokenizerBase, seed: int
) -> dict:
    """Teach the Proposer, from the Solver's weights on, which can copy numbers already; what the warm-up reached."""
    started = time.monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder / "model")
        updates, accuracy = warm_up(
            model,
            tokenizer,
            lessons,
            lambda limit: greedy_accuracy(
                model, tokenizer, unseen[:limit], grade_proposal, PROPOSER_MAX_RESPONSE_TOKENS
            ),
            PROPOSER_BAND,
            seed,
            lambda update, accuracy: print(
                f"warm-up proposer: {update} updates, right proposals {accuracy.graded:.1%}, "
                f"finished {accuracy.finished:.1%}, {time.monotonic() - started:.0f} s",
                flush=True,
            ),
            start=digest_of(model),
        )
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(folder / "proposer")
    tokenizer.save_pretrained(folder / "proposer")
    return {"accuracy": accuracy.graded, "finished": accuracy.finished, "updates": updates}


def _proposer_example(chosen: Example, knowledge: str) -> Example:
    answer = chosen.ground_truth
    return Example(
        prompt=_chat(PROPOSER_SYSTEM, PROPOSER_USER.replace("{knowledge}", knowledge)),
        response=(
            f"<think>\n{_calculation(chosen)}\n</think>\n"
            f"<problem>{_question(chosen)}</problem>\n<answer>\\boxed{{{answer}}}</answer>"
        ),
        ground_truth=knowledge,
    )


def _solver_example(problem: Example) -> Example:
    info = problem.extra_info
    return Example(
        prompt=_chat(SOLVER_SYSTEM + SOLVER_BOX_REQUEST, info["question"]),
        response=f"<think>\n{_calculation(problem)}\n</think>\n<answer>\\boxed{{{problem.ground_truth}}}</answer>",
        ground_truth=problem.ground_truth,
        extra_info=info,
    )


def _chat(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _question(example: Example) -> str:
    return example.extra_info["question"]


def _things(example: Example) -> str:
    return next(thing for thing in arithmetic.THINGS if thing in _question(example))


def _calculation(example: Example) -> str:
    info = example.extra_info
    return f"{info['first']} {info['operation']} {info['second']} = {example.ground_truth}"


def _sign_of(question: str) -> str | None:
    """Operation of a question in one of the wordings of the arithmetic format, None for other questions."""
    for sign, templates in arithmetic.TEMPLATES.items():
        for template in templates:
            pattern = re.sub(r"\\\{\w+\\\}", r"\\w+", re.escape(template))
            if re.fullmatch(pattern, question):
                return sign
    return None
