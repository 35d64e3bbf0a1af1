"""Drafts by the junior, turns by the senior: the joint law of whole responses, and what a round asks for.

Two authors over 4 words, given by random logits for every text of up to 4 words; 1,024 texts of 5 words. 10,000
responses are compared with the exact law by a chi-square test at 0.001. Power: a rule under which a fifth of the
senior's tokens are the junior's is noticed with a probability above 0.99 (computed below); so are two wrong rules.
"""

import asyncio
import dataclasses
import itertools
import random

import numpy as np
import pytest
import torch

from recipes.tandem.portable import rounds
from recipes.tandem.portable.handover import Chunk, JointText
from recipes.tandem.portable.rounds import senior_turns, write_in_rounds
from vllm_patches.tandem.schedule import JUNIOR, SENIOR, AuthorSchedule, ScheduleParams, authorship

VOCABULARY, LENGTH, BOUNDARY, RESPONSES, LEVEL = 4, 5, frozenset({1, 3}), 10_000, 1e-3
CASES = {
    "word": ScheduleParams("word", seed=3, request=9, max_gap_tokens=2),
    "bernoulli": ScheduleParams("bernoulli", seed=3, request=8),
    "chunk": ScheduleParams("chunk", chunk_size=2),
    "alternating": ScheduleParams("alternating"),
    "sentence": ScheduleParams("sentence"),
}


@pytest.fixture(scope="module")
def laws():
    """Author and text -> probabilities of the next word; the junior is a noisy senior."""
    generator = torch.Generator().manual_seed(3)
    made = {SENIOR: {}, JUNIOR: {}}
    for length in range(LENGTH):
        for text in itertools.product(range(VOCABULARY), repeat=length):
            senior = 1.3 * torch.randn(VOCABULARY, generator=generator, dtype=torch.float64)
            junior = senior + 0.9 * torch.randn(VOCABULARY, generator=generator, dtype=torch.float64)
            made[SENIOR][text] = senior.softmax(0).tolist()
            made[JUNIOR][text] = junior.softmax(0).tolist()
    return made


def samplers(laws):
    """Authors that sample, each from one stream of its own, as servers without seeds do."""

    def sampler(author):
        stream = random.Random(author)

        async def continue_from(token_ids, max_tokens, seed):
            text = [*token_ids[1:]]
            for _ in range(max_tokens):
                text += stream.choices(range(VOCABULARY), laws[author][tuple(text)])
            return text[len(token_ids) - 1 :]

        return continue_from

    return {SENIOR: sampler(SENIOR), JUNIOR: sampler(JUNIOR)}


def write(laws, params, draft_tokens, count=RESPONSES):
    """(VOCABULARY ** LENGTH,) how often each text was written."""
    authors, found = samplers(laws), np.zeros([VOCABULARY] * LENGTH)

    async def write_all():
        for _ in range(count):
            response = await write_in_rounds(
                [0],
                authors,
                params,
                BOUNDARY,
                stop_ids=(),
                max_tokens=LENGTH,
                draft_tokens=draft_tokens,
                chunk_tokens=3,
            )
            assert response.authorship_mask == authorship(response.token_ids, params, BOUNDARY)
            found[tuple(response.token_ids)] += 1

    asyncio.run(write_all())
    return found.ravel()


def exact_law(laws, params, confused=0.0):
    """(VOCABULARY ** LENGTH,); a share `confused` of the senior's tokens comes from the junior."""
    law = np.empty([VOCABULARY] * LENGTH)
    for text in itertools.product(range(VOCABULARY), repeat=LENGTH):
        schedule, probability = AuthorSchedule(params, BOUNDARY), 1.0
        for position, token in enumerate(text):
            senior, junior = (laws[author][text[:position]][token] for author in (SENIOR, JUNIOR))
            senior = (1 - confused) * senior + confused * junior
            probability *= senior if schedule.author == SENIOR else junior
            schedule.advance(token)
        law[text] = probability
    assert law.sum() == pytest.approx(1)
    return law.ravel()


def p_value(counts, law):
    """Of the chi-square test; rare texts are pooled into cells that expect at least 5."""
    order = np.argsort(law)
    expected = counts.sum() * law[order]
    cell = np.where(expected < 5, np.cumsum(expected) // 5, np.arange(len(order)) + len(order))
    cell = np.unique(cell, return_inverse=True)[1]
    seen, expected = np.bincount(cell, counts[order]), np.bincount(cell, expected)
    statistic = torch.tensor(((seen - expected) ** 2 / expected).sum() / 2)
    return float(torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2, dtype=torch.float64), statistic))


@pytest.mark.parametrize("draft_tokens", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_the_joint_law_is_tandem_decodings(laws, name, draft_tokens):
    assert p_value(write(laws, CASES[name], draft_tokens), exact_law(laws, CASES[name])) > LEVEL


@pytest.mark.parametrize("name", CASES)
def test_the_power_is_as_stated(laws, name):
    generator, law = np.random.default_rng(0), exact_law(laws, CASES[name])
    other = exact_law(laws, CASES[name], confused=0.2)
    others = [p_value(generator.multinomial(RESPONSES, other / other.sum()), law) for _ in range(300)]
    same = [p_value(generator.multinomial(RESPONSES, law / law.sum()), law) for _ in range(300)]
    noticed = sum(p <= LEVEL for p in others) / 300
    assert noticed > 0.99 and sum(p <= LEVEL for p in same) <= 3


def accept_all(text, draft, answers):
    """A wrong rule: the draft stands at the senior's positions too."""
    while not text.finished and len(text.token_ids) < draft.start + len(draft.token_ids):
        text.emit(dataclasses.replace(draft, author=text.author))


def check_all(text, draft, answers):
    """A wrong rule, plain speculation: the senior decides at every position."""
    for position, token in enumerate(draft.token_ids):
        if text.finished:
            return
        own = dataclasses.replace(answers[position], author=text.author, token_ids=answers[position].token_ids[:1])
        if text.emit(own) != [token]:
            return


@pytest.mark.parametrize("name", ["word", "bernoulli", "chunk", "alternating"])
@pytest.mark.parametrize("wrong", [accept_all, check_all])
def test_wrong_rules_are_noticed(laws, monkeypatch, name, wrong):
    monkeypatch.setattr(rounds, "settle", wrong)
    if wrong is check_all:
        monkeypatch.setattr(rounds, "senior_turns", lambda text, draft: list(range(len(draft.token_ids))))
    assert p_value(write(laws, CASES[name], 4), exact_law(laws, CASES[name])) < 1e-6


def text_of(params, **changes):
    settings = {"prompt_ids": [0], "authors": {}, "boundary_ids": BOUNDARY, "stop_ids": {7}, "max_tokens": 20}
    return JointText(params=params, **settings | changes)


@pytest.mark.parametrize(
    ("draft", "changes", "turns"),
    [
        (Chunk(0, 0, [0, 0, 0, 0, 0], False), {}, [2]),
        (Chunk(0, 0, [0] * 6, False), {}, [2, 6]),
        (Chunk(0, 0, [0, 0], False), {}, [2]),  # the senior goes on behind the draft
        (Chunk(0, 0, [0, 0], True), {}, []),  # the junior's engine ended the response
        (Chunk(0, 0, [0, 7], False), {}, []),
        (Chunk(0, 0, [0, 0], False), {"max_tokens": 2}, []),
        (Chunk(0, 0, [0, 0, 7, 0, 0, 0, 0], False), {}, [2]),  # only if the senior writes another token than the stop
        (Chunk(0, 0, [0] * 7, False), {}, [2, 6]),
    ],
)
def test_the_senior_is_asked_at_the_start_of_each_of_its_turns(draft, changes, turns):
    text = text_of(ScheduleParams("chunk", chunk_size=2), **changes)
    while text.author == SENIOR:
        text.schedule.advance(0)
    assert senior_turns(text, draft) == turns
    assert text.author == JUNIOR, "the schedule is not moved"


def scripted(tokens):
    async def continue_from(token_ids, max_tokens, seed):
        return tokens[len(token_ids) - 1 :][:max_tokens]

    return continue_from


def test_a_round_by_hand():
    """chunk of 2, senior first: ss jj ss jj; the authors differ at position 5, the second token of a senior's turn."""
    senior, junior = [5, 6, 0, 0, 5, 6, 9, 9, 5, 6], [0, 0, 5, 6, 5, 4, 5, 6, 0, 0]
    asked = []

    def noted(author, tokens):
        async def continue_from(token_ids, max_tokens, seed):
            asked.append((author, list(token_ids[1:]), max_tokens))
            return await scripted(tokens)(token_ids, max_tokens, seed)

        return continue_from

    authors = {SENIOR: noted("s", senior), JUNIOR: noted("j", junior)}
    params = ScheduleParams("chunk", chunk_size=2)
    found = asyncio.run(
        write_in_rounds([0], authors, params, BOUNDARY, stop_ids=(), max_tokens=9, draft_tokens=6, chunk_tokens=3)
    )
    assert found.token_ids == [5, 6, 5, 6, 5, 6, 5, 6, 5]
    assert found.authorship_mask == [1, 1, 0, 0, 1, 1, 0, 0, 1]
    assert asked == [
        ("s", [], 3),  # the senior writes first: its turn, one token of three thrown away
        ("j", [5, 6], 6),
        ("s", [5, 6, 5, 6], 3),  # its turn in the draft; the draft's 4 falls to its 6, and the round ends
        ("s", [5, 6, 5, 6, 5, 4, 5, 6], 1),  # behind the draft, thrown away
        ("j", [5, 6, 5, 6, 5, 6], 3),
        ("s", [5, 6, 5, 6, 5, 6, 5, 6], 1),
    ]
    assert (found.requests, found.trips) == (6, 5)
    assert found.asked_at == [0, 0, 2, 2, 4, 4, 6, 6, 8]
    assert found.discarded == sum((3, 6, 3, 1, 3, 1)) - 9


def test_the_turns_of_a_round_are_asked_for_at_once():
    under_way, most = 0, 0

    async def senior(token_ids, max_tokens, seed):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return [2] * max_tokens

    authors = {SENIOR: senior, JUNIOR: scripted([2] * 100)}
    params, options = ScheduleParams("alternating"), {"stop_ids": (), "max_tokens": 17, "draft_tokens": 8}
    found = asyncio.run(write_in_rounds([0], authors, params, BOUNDARY, **options))
    assert found.token_ids == [2] * 17 and most == 4
    assert (found.requests, found.trips) == (1 + 2 * 5, 5)


def test_a_failing_senior_fails_the_response_and_the_other_requests_are_given_up():
    given_up = []

    async def senior(token_ids, max_tokens, seed):
        if len(token_ids) == 3:
            await asyncio.sleep(0.01)
            raise ConnectionError("gone")
        try:
            await asyncio.sleep(10 if len(token_ids) > 3 else 0)
        except asyncio.CancelledError:
            given_up.append(len(token_ids))
            raise
        return [2] * max_tokens

    params, options = ScheduleParams("alternating"), {"stop_ids": (), "max_tokens": 17, "draft_tokens": 8}
    with pytest.raises(ConnectionError, match="gone"):
        asyncio.run(write_in_rounds([0], {SENIOR: senior, JUNIOR: scripted([2] * 100)}, params, BOUNDARY, **options))
    assert given_up == [5, 7, 9]


@pytest.mark.parametrize("changes", [{"draft_tokens": 0}, {"chunk_tokens": 0}, {"max_tokens": 0}])
def test_lengths_below_one_are_refused(changes):
    options = {"stop_ids": (), "max_tokens": 5, "draft_tokens": 2} | changes
    with pytest.raises(ValueError, match="must be at least 1"):
        asyncio.run(write_in_rounds([0], {}, ScheduleParams("alternating"), BOUNDARY, **options))
