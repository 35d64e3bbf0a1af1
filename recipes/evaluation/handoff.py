"""Handoff between two engines: the two models write one response in turns, one part each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

RESERVED_TOKENS = 8


class Part(NamedTuple):
    """What one model wrote in its turn: tokens, and whether the response is over."""

    token_ids: list[int]
    finished: bool


class Turn(NamedTuple):
    """What a model is asked for: to go on from these token ids, for at most so many tokens, with this seed."""

    token_ids: list[int]
    max_tokens: int
    seed: int


# (author, turns) -> one Part for each turn
Write = Callable[[str, list[Turn]], list[Part]]


@dataclass
class Handoff:
    """A response with the author of every token.

    Attributes:
        authors: one name per token of `token_ids`.
        ended: "stop" (a model ended it), "length" (the shared budget is spent) or "rounds".
    """

    prompt: Sequence[int]
    budget: int
    seed: int
    token_ids: list[int] = field(default_factory=list)
    authors: list[str] = field(default_factory=list)
    ended: str = "rounds"
    rounds: int = 0


def shared_budget(max_tokens: int, model_length: int, prompt_tokens: int) -> int:
    """Tokens both models may write together: the response limit or what the shorter context window leaves."""
    return max(0, min(max_tokens, model_length - prompt_tokens - RESERVED_TOKENS))


def alternate(
    prompts: Sequence[Sequence[int]],
    write: Write,
    authors: tuple[str, str],
    budgets: Sequence[int],
    seeds: Sequence[int],
    max_rounds: int = 150,
) -> Iterator[tuple[int, Handoff]]:
    """Let two models write each response in turns until one ends it, its budget is spent or the rounds are.

    All open responses take their turn together, as one batch. The seed of a turn is the response's seed + the tokens
    it has so far, so that a response depends on nothing but its own seed.

    Args:
        prompts: token ids of each prompt.
        write: lets one model take a batch of turns.
        authors: names of the two models, the one that starts first.
        budgets: most tokens of each response.

    Yields:
        Position of a prompt and its response, each as soon as it has ended.
    """
    running = {i: Handoff(*values) for i, values in enumerate(zip(prompts, budgets, seeds, strict=True))}
    for number in range(max_rounds):
        for position, response in list(running.items()):
            if response.ended == "rounds" and len(response.token_ids) >= response.budget:
                response.ended = "length"
            if response.ended != "rounds":
                yield position, running.pop(position)
        if not running:
            return
        author = authors[number % 2]
        turns = [
            Turn([*one.prompt, *one.token_ids], one.budget - len(one.token_ids), one.seed + len(one.token_ids))
            for one in running.values()
        ]
        for response, part in zip(running.values(), write(author, turns), strict=True):
            response.token_ids += part.token_ids
            response.authors += [author] * len(part.token_ids)
            response.rounds += 1
            if part.finished or not part.token_ids:
                response.ended = "stop"
    yield from running.items()


def author_spans(
    token_ids: Sequence[int], authors: Sequence[str], author: str, decode: Callable[[Sequence[int]], str]
) -> list[list[int]]:
    """The parts of a response's text that one author wrote, as [start, end) in characters, in order.

    Args:
        authors: author of each token.
        decode: text of token ids; may give fewer characters for a part that ends inside one.
    """
    ends = [k for k in range(1, len(authors)) if authors[k] != authors[k - 1]] + [len(authors)]
    starts = [0, *ends[:-1]]
    parts = [decode(token_ids[start:end]) for start, end in zip(starts, ends, strict=True)]
    if "".join(parts) == decode(token_ids):
        places = [0]
        for part in parts:
            places.append(places[-1] + len(part))
    else:
        # Some tokenizers add or drop a space at the start of a text, and a character may span two authors.
        places = [0] + [len(decode(token_ids[:end]).rstrip("\ufffd")) for end in ends]
    return [
        [places[run], places[run + 1]]
        for run, start in enumerate(starts)
        if authors and authors[start] == author and places[run] < places[run + 1]
    ]


def clipped(spans: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """The spans of a text that was cut to `length` characters."""
    return [[start, min(end, length)] for start, end in spans if start < length]


def handoff_ratio(handoff: float, solo: float) -> float | None:
    """What of the solo score survives the handoff, or None when the solo score is 0.

    Both must come from the same sampling settings and the same k, or the ratio compares two protocols, not two
    settings.
    """
    return handoff / solo if solo else None
