"""Sums written in words of two styles, and responses that a senior and a junior write together.

The sum of five digits modulo five. Reasoning names, sentence by sentence, the next addend and the running sum, in words
of style A or B (two names of the same digits, each one token), and ends with the answer in figures. The senior reads
and writes both styles; its demonstrations begin in A a little more often, and are a little more reliable in B, so that
outcome reward alone has a reason to leave A. The junior has only ever seen A, and is weak at adding.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from policy import EOS, PAD, Alphabet, Responses, without_padding

from vllm_patches.tandem.schedule import AuthorSchedule, ScheduleParams

STYLE_A, STYLE_B = "abcde", "ABCDE"
DIGITS, MODULUS = 5, 5
ALPHABET = Alphabet("01234=;#" + STYLE_A + STYLE_B)
WORDS, SENTENCE_ENDS = (frozenset(ALPHABET.ids[letter] for letter in letters) for letters in (STYLE_A + STYLE_B, ";"))
MAX_TOKENS = 3 * (DIGITS - 1) + 2 + 6


@dataclass(frozen=True)
class Writer:
    """How a model's demonstrations are written.

    Attributes:
        starts_in_a: probability that the first word is of style A.
        stays: probability that a word has the style of the word before.
        errors: probability that a running sum is wrong, in style A and in style B; what follows builds on it.
    """

    starts_in_a: float
    stays: float
    errors: tuple[float, float]


SENIOR = Writer(starts_in_a=0.6, stays=0.9, errors=(0.14, 0.08))
JUNIOR = Writer(starts_in_a=1.0, stays=1.0, errors=(0.20, 0.20))


def make_prompt(generator: torch.Generator) -> str:
    """Five digits and the sign that asks for their sum."""
    return "".join(map(str, torch.randint(MODULUS, (DIGITS,), generator=generator).tolist())) + "="


def answer_to(prompt: str) -> int:
    return sum(map(int, prompt[:-1])) % MODULUS


def demonstrate(writer: Writer, generator: torch.Generator) -> tuple[str, str]:
    """A prompt and a response to it, with the writer's habits and errors."""
    prompt = make_prompt(generator)
    draws = iter(torch.rand(4 * DIGITS, generator=generator).tolist())
    in_a = next(draws) < writer.starts_in_a
    total, text = int(prompt[0]), ""
    for addend in map(int, prompt[1:-1]):
        words = STYLE_A if in_a else STYLE_B
        text += words[addend]
        in_a ^= next(draws) >= writer.stays
        total = (total + addend) % MODULUS
        if next(draws) < writer.errors[0 if in_a else 1]:
            total = (total + 1 + int((MODULUS - 1) * next(draws))) % MODULUS
        text += (STYLE_A if in_a else STYLE_B)[total] + ";"
        in_a ^= next(draws) >= writer.stays
    return prompt, f"{text}#{total}"


def is_right(prompt: str, text: str) -> bool:
    """Whether what stands behind the sign of the answer is the sum."""
    return re.fullmatch(r"[^#]*#(\d)", text) is not None and int(text[-1]) == answer_to(prompt)


def share_of_a(text: str) -> float | None:
    """Share of the response's letters that belong to style A; None without letters."""
    letters = [letter for letter in text if letter.isalpha()]
    return sum(letter.islower() for letter in letters) / len(letters) if letters else None


@torch.no_grad()
def write_jointly(
    senior, junior, prompts: Sequence[str], schedules: Sequence[AuthorSchedule], generator: torch.Generator
) -> tuple[Responses, torch.Tensor]:
    """One joint response to each prompt at temperature 1, and its authorship mask (B, T): true where the senior wrote.

    Both models read every token; each token is the sample of the model whose turn the response's schedule says it is.
    """
    start = ids = ALPHABET.encode(prompts)
    past: list = [None, None]
    written, log_probs, authors = [], [], []
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(MAX_TOKENS):
        scores = []
        for which, model in enumerate((junior, senior)):
            seen = model(ids, past_key_values=past[which], use_cache=True)
            past[which] = seen.past_key_values
            scores.append(without_padding(seen.logits[:, -1]))
        by_senior = torch.tensor([bool(schedule.author) for schedule in schedules])
        mixed = torch.where(by_senior[:, None], scores[1], scores[0])
        chosen = torch.multinomial(mixed.exp(), 1, generator=generator)[:, 0]
        log_probs.append(torch.where(ended, 0.0, mixed.gather(1, chosen[:, None])[:, 0]))
        written.append(torch.where(ended, PAD, chosen))
        authors.append(by_senior & ~ended)
        for schedule, token in zip(schedules, chosen.tolist(), strict=True):
            schedule.advance(token)
        ended = ended | (chosen == EOS)
        ids = written[-1][:, None]
        if bool(ended.all()):
            break
    tokens = torch.stack(written, dim=1)
    responses = Responses(start, tokens, tokens != PAD, torch.stack(log_probs, dim=1), ALPHABET.decode(tokens))
    return responses, torch.stack(authors, dim=1)


def schedules_of(strategy: str, prob_senior: float, seed: int, identities: Sequence[int]) -> list[AuthorSchedule]:
    boundary = SENTENCE_ENDS if strategy == "sentence" else WORDS
    return [
        AuthorSchedule(ScheduleParams(strategy, prob_senior, seed=seed, request=identity), boundary)
        for identity in identities
    ]
