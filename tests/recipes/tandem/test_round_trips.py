"""What the portable path costs on simulated authors; REFERENCE.md shows this table.

    python tests/recipes/tandem/test_round_trips.py

Two authors write a response of 3,000 tokens under the paper's schedule (`word`, p 0.5, cap 32). Two of three tokens
begin a word, so a turn lasts three tokens. Given the text, an author writes the expected token with probability sqrt(a)
and any other else; two independent samples agree with probability a.
"""

import asyncio
import random
import re
from pathlib import Path

import recipes.tandem
from recipes.tandem.portable.handover import write_jointly
from recipes.tandem.portable.rounds import write_in_rounds
from vllm_patches.tandem.schedule import JUNIOR, SENIOR, ScheduleParams, mix64

VOCABULARY, LENGTH, RESPONSES = 30_000, 3_000, 2
BOUNDARY = frozenset(token for token in range(VOCABULARY) if token % 3)
AGREEMENTS, DRAFTS = (0.6, 0.8, 0.9, 0.95), (8, 16, 32)


def author(agreement, stream):
    """An author that samples; the expected token is a function of the text's last two tokens."""

    async def continue_from(token_ids, max_tokens, seed):
        written = list(token_ids[-2:])
        for _ in range(max_tokens):
            expected = mix64(written[-1] << 20 ^ written[-2]) % VOCABULARY
            agrees = stream.random() < agreement**0.5
            written.append(expected if agrees else stream.randrange(VOCABULARY))
        return written[2:]

    return continue_from


def cost(agreement, draft_tokens=None):
    """Requests, round trips and discarded tokens of a response; means over some."""
    totals = [0, 0, 0]
    for request in range(RESPONSES):
        authors = {a: author(agreement, random.Random(2 * request + a)) for a in (SENIOR, JUNIOR)}
        write, options = write_jointly, {"stop_ids": (), "max_tokens": LENGTH, "chunk_tokens": 8}
        if draft_tokens is not None:
            write, options = write_in_rounds, options | {"draft_tokens": draft_tokens}
        found = asyncio.run(write([0, 0], authors, ScheduleParams("word", request=request), BOUNDARY, **options))
        for i, value in enumerate((found.requests, found.trips, found.discarded)):
            totals[i] += value / RESPONSES
    return totals


def table():
    """The rows of the table, as Markdown."""
    for draft_tokens in (None, *DRAFTS):
        for agreement in AGREEMENTS[-1:] if draft_tokens is None else AGREEMENTS:
            requests, trips, discarded = cost(agreement, draft_tokens)
            name, shown = ("null", "any") if draft_tokens is None else (draft_tokens, agreement)
            yield f"| {name} | {shown} | {trips:,.0f} | {requests:,.0f} | {discarded:,.0f} |"


def test_the_table_is_what_the_simulation_gives():
    text = (Path(recipes.tandem.__file__).parent / "REFERENCE.md").read_text(encoding="utf-8")
    head = "| `draft_tokens` | agreement | round trips | requests | tokens thrown away |\n|---|---|---|---|---|\n"
    assert re.search(re.escape(head) + r"((?:\|.*\n)+)", text)[1].splitlines() == list(table())


if __name__ == "__main__":
    print("\n".join(table()))
