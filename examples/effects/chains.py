"""A world of sums in many orders, in which single answers are often wrong and the votes of many are right, or not.

A prompt is four digits and "=", its answer their sum modulo 10. A response takes the digits in an order of its choice
and writes the running sum behind each: "7392=" may be answered "7" "30" "99" "21", without the spaces. Each running sum
is one of 100 facts, and demonstrations know some of them wrongly. A wrong fact spoils the orders that pass through it
and no other. So a response is right where its order avoids the wrong facts, and the votes of many responses are right
where the wrong ones disagree: where wrong facts are off by different amounts. Facts that are all off by the same
amount agree with each other, and outvote the right ones, at the same share of right responses.
"""

import functools
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from policy import Alphabet, make_model, sample, warm_up

DIGITS = 4
ALPHABET = Alphabet("0123456789=")
RESPONSE = 2 * DIGITS - 1


@dataclass(frozen=True)
class Chains:
    """The facts that demonstrations are written with.

    Attributes:
        offsets: by (running sum, digit), by how much the known sum is off; facts that are missing are known rightly.
        slip: probability that a wrong fact is used where it applies; the right sum is written otherwise.
    """

    offsets: dict[tuple[int, int], int]
    slip: float = 0.9

    @classmethod
    def drawn(cls, seed: int, *, wrong: int, same: float, slip: float = 0.9) -> "Chains":
        """`wrong` of the 100 facts are off: the share `same` of them by 1, the others by anything in 1..9."""
        draw = random.Random(seed)
        facts = draw.sample(list(itertools.product(range(10), range(10))), wrong)
        shared = round(same * wrong)
        return cls({fact: 1 if place < shared else draw.randint(1, 9) for place, fact in enumerate(facts)}, slip)

    def demonstration(self, generator: torch.Generator) -> tuple[str, str]:
        """A random prompt and a response in a random order."""
        digits = torch.randint(10, (DIGITS,), generator=generator).tolist()
        order = torch.randperm(DIGITS, generator=generator).tolist()
        slips = (torch.rand(DIGITS, generator=generator) < self.slip).tolist()
        total = digits[order[0]]
        response = str(total)
        for place, slipped in zip(order[1:], slips, strict=False):
            off = self.offsets.get((total, digits[place]), 0) if slipped else 0
            total = (total + digits[place] + off) % 10
            response += f"{digits[place]}{total}"
        return prompt_of(digits), response

    def answers(self, prompt: str) -> dict[str, float]:
        """The distribution of a demonstration's answer, by enumeration of all orders and slips."""
        found: Counter[str] = Counter()
        for order in itertools.permutations([int(digit) for digit in prompt[:DIGITS]]):
            totals = {order[0]: 1 / 24}
            for digit in order[1:]:
                after: Counter[int] = Counter()
                for total, probability in totals.items():
                    off = self.offsets.get((total, digit), 0)
                    after[(total + digit) % 10] += probability * (1 - self.slip if off else 1)
                    after[(total + digit + off) % 10] += probability * self.slip if off else 0
                totals = dict(after)
            for total, probability in totals.items():
                found[str(total)] += probability
        return dict(found)


def prompt_of(digits: Sequence[int]) -> str:
    """The prompt that asks for the sum of four digits."""
    return "".join(map(str, digits)) + "="


def gold_of(prompt: str) -> str:
    """The right answer."""
    return str(sum(map(int, prompt[:DIGITS])) % 10)


def answer_of(response: str) -> str:
    """The last running sum, or "" where the response has not the form of one."""
    return response[-1] if len(response) == RESPONSE and response.isdigit() else ""


def prompts(seed: int, number: int, *, held_out: bool = False) -> list[str]:
    """Distinct random prompts; 2,000 of the 10,000, the same ones always, are held out of training."""
    everything = list(itertools.product(range(10), repeat=DIGITS))
    random.Random(0).shuffle(everything)
    return [
        prompt_of(digits)
        for digits in random.Random(seed).sample(everything[:2000] if held_out else everything[2000:], number)
    ]


def accuracy(model, questions: Sequence[str], *, generator: torch.Generator, greedy: bool) -> float:
    """Share of the prompts that get the right answer, greedily or sampled at temperature 1."""
    texts = sample(model, ALPHABET, questions, max_tokens=RESPONSE + 1, generator=generator, greedy=greedy).texts
    return sum(answer_of(text) == gold_of(prompt) for text, prompt in zip(texts, questions, strict=True)) / len(texts)


@functools.lru_cache(maxsize=1)
def warmed_up(wrong: int, same: float, slip: float, seed: int, steps: int):
    """The policy all arms start from: a random one after `steps` updates on demonstrations. Copy it before training."""
    model = make_model(ALPHABET, seed=seed)
    world = Chains.drawn(seed, wrong=wrong, same=same, slip=slip)
    generator = torch.Generator().manual_seed(seed)
    for rate, share in ((4e-3, 0.75), (1e-3, 0.25)):
        warm_up(model, ALPHABET, world.demonstration, steps=round(share * steps), generator=generator, rate=rate)
    return model
