"""The portable path writes what the two models, taking turns token by token, would have written."""

import asyncio
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from recipes.tandem.portable.handover import chunk_seed, write_jointly
from vllm_patches.tandem.schedule import AuthorSchedule, ScheduleParams, authorship

VOCABULARY, STOP = 40, 39
BOUNDARY = frozenset(range(0, VOCABULARY, 3))
STRATEGIES = ("word", "bernoulli", "chunk", "alternating", "sentence", "senior", "junior")


def params_of(name, request, p=0.5):
    return ScheduleParams(selection_strategy=name, prob_senior=p, max_gap_tokens=5, chunk_size=3, request=request)


def write(prompt, authors, params, **kwargs):
    options = {"stop_ids": {STOP}, "max_tokens": 60, "chunk_tokens": 8} | kwargs
    return asyncio.run(write_jointly(prompt, authors, params, BOUNDARY, **options))


def greedy(model):
    """Continue greedily with a transformers model, from the whole prefix each time."""

    async def continue_from(token_ids, max_tokens, seed):
        written = []
        with torch.no_grad():
            while len(written) < max_tokens and STOP not in written:
                logits = model(torch.tensor([[*token_ids, *written]])).logits[0, -1]
                written.append(int(logits.argmax()))
        return written

    return continue_from


def turn_by_turn(prompt, models, params, max_tokens):
    """The plain loop: ask the schedule, let that model emit one token, tell the schedule."""
    schedule, tokens, mask = AuthorSchedule(params, BOUNDARY), [], []
    with torch.no_grad():
        while len(tokens) < max_tokens and STOP not in tokens:
            mask.append(schedule.author)
            tokens.append(int(models[schedule.author](torch.tensor([[*prompt, *tokens]])).logits[0, -1].argmax()))
            schedule.advance(tokens[-1])
    return tokens, mask


@pytest.fixture(scope="module")
def models():
    made = {}
    for author, (width, layers) in {1: (32, 2), 0: (16, 1)}.items():
        torch.manual_seed(author)
        config = Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            initializer_range=0.5,
        )
        made[author] = Qwen3ForCausalLM(config).eval()
    return made


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("chunk_tokens", [1, 8])
def test_greedy_responses_equal_the_plain_loop(models, name, chunk_tokens):
    authors = {author: greedy(model) for author, model in models.items()}
    switches = 0
    for request in range(2):
        prompt, params = [request + 1, 7, 5], params_of(name, request)
        found = write(prompt, authors, params, chunk_tokens=chunk_tokens, max_tokens=16)
        assert (found.token_ids, found.authorship_mask) == turn_by_turn(prompt, models, params, 16)
        assert found.authorship_mask == authorship(found.token_ids, params, BOUNDARY)
        switches += len(set(found.authorship_mask)) - 1
    assert switches or name in ("senior", "junior", "sentence", "word")


def test_the_same_model_twice_writes_what_it_writes_alone(models):
    for name in STRATEGIES:
        authors = {1: greedy(models[1]), 0: greedy(models[1])}
        both = write([3, 4], authors, params_of(name, 5), max_tokens=16)
        alone = asyncio.run(greedy(models[1])([3, 4], 16, 0))
        assert both.token_ids == alone


def scripted(offset, near=False):
    """A deterministic author whose next token depends on the whole prefix; `near` ones mostly agree."""

    def following(prefix):
        total = sum((i + 1) * token for i, token in enumerate(prefix))
        return (total * 31 + 17 * offset * (not near or total % 4 == 0)) % VOCABULARY

    async def continue_from(token_ids, max_tokens, seed):
        written = []
        while len(written) < max_tokens and STOP not in written:
            written.append(following([*token_ids, *written]))
        return written

    return following, continue_from


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(STRATEGIES),
    st.integers(0, 2**62),
    st.floats(0, 1),
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4),
    st.integers(1, 12),
    st.booleans(),
    st.integers(1, 50),
)
def test_scripted_trajectories_equal_the_plain_loop(name, request, p, prompt, chunk_tokens, near, max_tokens):
    senior, junior = scripted(1, near), scripted(2, near)
    params = params_of(name, request, p)
    authors = {1: senior[1], 0: junior[1]}
    found = write(prompt, authors, params, chunk_tokens=chunk_tokens, max_tokens=max_tokens)
    schedule, tokens = AuthorSchedule(params, BOUNDARY), []
    while len(tokens) < max_tokens and STOP not in tokens:
        tokens.append((senior if schedule.author else junior)[0]([*prompt, *tokens]))
        schedule.advance(tokens[-1])
    assert found.token_ids == tokens
    assert found.authorship_mask == authorship(tokens, params, BOUNDARY)


def test_sampled_responses_have_the_joint_distribution():
    """Three sampled tokens over two words: frequencies against the exact joint law, per authorship."""
    heads = {1: 0.8, 0: 0.3}

    def sampler(author):
        async def continue_from(token_ids, max_tokens, seed):
            generator = random.Random(seed)
            # every token depends on the one before it
            written = []
            for _ in range(max_tokens):
                p = heads[author] if (written or token_ids)[-1] != 3 else 1 - heads[author]
                written.append(3 if generator.random() < p else 4)
            return written

        return continue_from

    authors, count, found = {1: sampler(1), 0: sampler(0)}, 5_000, Counter()

    async def write_all():
        for request in range(count):
            response = await write_jointly(
                [1], authors, params_of("word", request), BOUNDARY, stop_ids={STOP}, max_tokens=3, chunk_tokens=3
            )
            found[tuple(response.token_ids), tuple(response.authorship_mask)] += 1

    asyncio.run(write_all())
    # 3 is a boundary: the author is redrawn after it, and kept after 4.
    for tokens in ((a, b, c) for a in (3, 4) for b in (3, 4) for c in (3, 4)):
        for mask in ((a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)):
            p, former = 1.0, 1
            for i, (token, author) in enumerate(zip(tokens, mask, strict=True)):
                drawn = i == 0 or former == 3
                p *= 0.5 if drawn else float(author == mask[i - 1])
                three = heads[author] if former != 3 else 1 - heads[author]
                p *= three if token == 3 else 1 - three
                former = token
            sd = (p * (1 - p) / count) ** 0.5
            assert abs(found[tokens, mask] / count - p) <= 5 * sd


@pytest.mark.parametrize("answer", [[], [1] * 9])
def test_a_faulty_author_is_an_error(answer):
    async def continue_from(*_):
        return answer

    with pytest.raises(RuntimeError, match=f"wrote {len(answer)} tokens"):
        write([1], {1: continue_from, 0: continue_from}, params_of("word", 0))


def test_word_align_before_has_no_portable_path():
    with pytest.raises(ValueError, match="no portable path"):
        write([1], {1: None, 0: None}, ScheduleParams(word_align="before"))


def test_chunk_seeds_are_apart():
    seeds = {chunk_seed(params_of("word", request), position) for request in range(40) for position in range(40)}
    assert len(seeds) == 1600 and all(0 <= seed < 2**63 for seed in seeds)
