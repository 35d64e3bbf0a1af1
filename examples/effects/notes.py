"""Notes of four digits, and questions about them that a Solver answers always, often, seldom or by luck alone.

A question names a kind and the note's first three digits: "b739". The Solver sees the question and not the note. It
answers with their sum modulo 10, as a chain of running sums in an order of its choice: "7" "30" "99". Each kind has
wrong facts of its own among the 100 (running sum, digit): none for kind a, all for kind d. Questions of kinds u and v
ask for what stands in the note alone, its fourth digit, or whether that is odd: the Solver can only guess.
"""

import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from policy import Alphabet, make_model, sample, warm_up

DIGITS = 3
TRIPLES = ["".join(digits) for digits in itertools.product("0123456789", repeat=DIGITS)]
random.Random(0).shuffle(TRIPLES)
HELD_OUT, TRAINING = TRIPLES[:200], TRIPLES[200:]


@dataclass(frozen=True)
class Kind:
    """A kind of question.

    Attributes:
        wrong: of the 100 facts, how many demonstrations know wrongly.
        slip: probability that a wrong fact is used where it applies; the right sum is written otherwise.
        answers: how many answers are as likely where the question does not hold the answer; None where it does.
    """

    wrong: int = 0
    slip: float = 0.0
    answers: int | None = None


KINDS = {
    "a": Kind(),
    "b": Kind(wrong=40, slip=0.6),
    "c": Kind(wrong=70, slip=0.7),
    "d": Kind(wrong=100, slip=0.9),
    "u": Kind(answers=10),
    "v": Kind(answers=2),
}
ANSWERABLE = [name for name, kind in KINDS.items() if kind.answers is None]
# of the questions that a Proposer writes before training; the rest are of one kind without an answer
SHARES = {"a": 0.55, "b": 0.05, "c": 0.05, "d": 0.05}
ALPHABET = Alphabet("0123456789=:" + "".join(KINDS))
RESPONSE, QUESTION = 2 * DIGITS - 1, 1 + DIGITS


def parsed(text: str, note: str, kinds: Sequence[str]) -> str:
    """The question that a Proposer's text is, or "" where it is not one of these kinds about the note's digits."""
    return text if text[:1] in kinds and text[1:] == note[:DIGITS] else ""


def gold_of(question: str, note: str) -> str:
    """The right answer, which the question holds or the note alone."""
    answers = KINDS[question[0]].answers
    return str(sum(map(int, question[1:])) % 10 if answers is None else int(note[-1]) % answers)


def answer_of(question: str, text: str) -> str:
    """What a Solver's text answers, or "" where it has not the form of a response."""
    length = RESPONSE if question[0] in ANSWERABLE else 1
    return text[-1] if len(text) == length and text.isdigit() else ""


class Demonstrations:
    """What a Solver is warmed up with."""

    def __init__(self, seed: int, kinds: Sequence[str] = tuple(KINDS)):
        self.kinds = kinds
        draw = random.Random(seed)
        facts = list(itertools.product(range(10), range(10)))
        self.offsets = {
            (name, *fact): draw.randint(1, 9) for name, kind in KINDS.items() for fact in draw.sample(facts, kind.wrong)
        }

    def __call__(self, generator: torch.Generator) -> tuple[str, str]:
        """A random question of one of the kinds, and a response in a random order."""
        name = self.kinds[int(torch.randint(len(self.kinds), (), generator=generator))]
        digits = torch.randint(10, (DIGITS,), generator=generator).tolist()
        kind, prompt = KINDS[name], name + "".join(map(str, digits)) + "="
        if kind.answers is not None:
            return prompt, str(int(torch.randint(kind.answers, (), generator=generator)))
        first, *others = torch.randperm(DIGITS, generator=generator).tolist()
        slips = (torch.rand(DIGITS, generator=generator) < kind.slip).tolist()
        total = digits[first]
        response = str(total)
        for place, slipped in zip(others, slips, strict=False):
            off = self.offsets.get((name, total, digits[place]), 0) if slipped else 0
            total = (total + digits[place] + off) % 10
            response += f"{digits[place]}{total}"
        return prompt, response


def proposal(unanswerable: str, generator: torch.Generator) -> tuple[str, str]:
    """A random note and a question about it, as a Proposer writes before training."""
    note = "".join(map(str, torch.randint(10, (DIGITS + 1,), generator=generator).tolist()))
    weights = torch.tensor([*SHARES.values(), 1 - sum(SHARES.values())])
    name = [*SHARES, unanswerable][int(torch.multinomial(weights, 1, generator=generator))]
    return note + ":", name + note[:DIGITS]


def draw_note(generator: torch.Generator) -> str:
    """A note whose first digits are not held out."""
    place, last = torch.randint(len(TRAINING), (), generator=generator), torch.randint(10, (), generator=generator)
    return TRAINING[int(place)] + str(int(last))


def accuracy_by_kind(solver, *, generator: torch.Generator) -> dict[str, float]:
    """Greedy accuracy on the held-out questions of each kind that can be answered."""
    found = {}
    for name in ANSWERABLE:
        questions = [name + triple for triple in HELD_OUT]
        asked = [question + "=" for question in questions]
        texts = sample(solver, ALPHABET, asked, max_tokens=RESPONSE + 1, generator=generator, greedy=True).texts
        right = [answer_of(*pair) == gold_of(pair[0], "") for pair in zip(questions, texts, strict=True)]
        found[name] = sum(right) / len(right)
    return found


@functools.lru_cache(maxsize=1)
def first_solver(seed: int, steps: int):
    """The Solver that all arms start from: taught to add, then all kinds with their errors. Copy it before training."""
    sums, everything = Demonstrations(seed, "a"), Demonstrations(seed)
    return _taught([(sums, 4e-3, 0.35), (everything, 4e-3, 0.47), (everything, 1e-3, 0.18)], seed, steps)


@functools.lru_cache(maxsize=2)
def first_proposer(seed: int, unanswerable: str, steps: int):
    """The Proposer that all arms start from, which asks one kind of question without an answer. Copy it likewise."""
    pairs = functools.partial(proposal, unanswerable)
    return _taught([(pairs, 4e-3, 0.75), (pairs, 1e-3, 0.25)], seed, steps)


def _taught(lessons, seed: int, steps: int):
    """A model after `steps` updates; a lesson is a source of pairs, a learning rate and a share of the steps."""
    model, generator = make_model(ALPHABET, seed=seed), torch.Generator().manual_seed(seed)
    for make_pair, rate, share in lessons:
        warm_up(model, ALPHABET, make_pair, steps=round(share * steps), generator=generator, rate=rate)
    return model
