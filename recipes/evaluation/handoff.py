"""Handoff between two engines: the two models write one response in turns, one part each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SENTENCE_STOP = "\n\n"
MAX_ROUNDS = 150
RESERVED_TOKENS = 8


class Part(NamedTuple):
    """What one model wrote in its turn: tokens, text with the stop string kept, whether the response is over."""

    token_ids: list[int]
    text: str
    finished: bool


# (author, token ids of prompt and response so far, most tokens to write, seed) -> Part
Turn = Callable[[str, Sequence[int], int, int], Part]


@dataclass
class Handoff:
    """A response with the author of every token.

    Attributes:
        authors: one name per token of `token_ids`.
        ended: "stop" (a model ended it), "length" (the shared budget is spent) or "rounds".
    """

    token_ids: list[int] = field(default_factory=list)
    authors: list[str] = field(default_factory=list)
    text: str = ""
    ended: str = "rounds"
    rounds: int = 0


def shared_budget(max_tokens: int, model_length: int, prompt_tokens: int) -> int:
    """Tokens both models may write together: the response limit or what the shorter context window leaves."""
    return max(0, min(max_tokens, model_length - prompt_tokens - RESERVED_TOKENS))


def alternate(
    prompt: Sequence[int],
    turn: Turn,
    authors: tuple[str, str],
    budget: int,
    seed: int,
    max_rounds: int = MAX_ROUNDS,
) -> Handoff:
    """Let two models write in turns until one ends the response, the budget is spent or the rounds are.

    The seed of a turn is `seed` + tokens used so far, so that a response depends on nothing but its own seed.

    Args:
        authors: names of the two models, the one that starts first.
    """
    response = Handoff()
    for number in range(max_rounds):
        left = budget - len(response.token_ids)
        if left <= 0:
            response.ended = "length"
            break
        author = authors[number % 2]
        part = turn(author, [*prompt, *response.token_ids], left, seed + len(response.token_ids))
        response.token_ids += part.token_ids
        response.authors += [author] * len(part.token_ids)
        response.text += part.text
        response.rounds += 1
        if part.finished or not part.token_ids:
            response.ended = "stop"
            break
    return response


def handoff_ratio(handoff: float, solo: float) -> float | None:
    """What of the solo score survives the handoff, or None when the solo score is 0.

    Both must come from the same sampling settings and the same k, or the ratio compares two protocols, not two
    settings.
    """
    return handoff / solo if solo else None
