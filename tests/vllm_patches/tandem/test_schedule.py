"""Author schedules on scripted token streams, and the batch form against the scalar form."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_patches.tandem import schedule as schedule_module
from vllm_patches.tandem.schedule import (
    JUNIOR,
    SENIOR,
    STRATEGIES,
    AuthorSchedule,
    ScheduleParams,
    Strategy,
    authorship,
    coin,
    mix64,
    register_strategy,
    request_key,
    senior_threshold,
    stream_key,
)
from vllm_patches.tandem.schedule_table import ScheduleTable, coin_authors, mix64_array

WORD, PARAGRAPH, PLAIN, EOS = 7, 8, 1, 0
BOUNDARY = {"word": frozenset({WORD}), "sentence": frozenset({PARAGRAPH})}
VOCAB = 16


def coins_of(params: ScheduleParams, count: int) -> list[int]:
    key = stream_key(params.seed, params.request)
    return [int(coin(key, k) < senior_threshold(params.prob_senior)) for k in range(count)]


def boundary_of(params: ScheduleParams) -> frozenset[int]:
    return BOUNDARY.get(params.strategy.boundary, frozenset())


any_params = st.builds(
    ScheduleParams,
    selection_strategy=st.sampled_from(["word", "bernoulli", "chunk", "alternating", "sentence", "senior", "junior"]),
    prob_senior=st.floats(0, 1),
    max_gap_tokens=st.integers(1, 40),
    chunk_size=st.integers(1, 9),
    seed=st.integers(-(2**63), 2**64 - 1),
    request=st.integers(-(2**63), 2**64 - 1),
)
any_tokens = st.lists(st.integers(0, VOCAB - 1), max_size=120)


def test_word_redraws_after_the_emission_of_a_boundary_token():
    params = ScheduleParams(seed=3, request=11)
    stream = [PLAIN, WORD, PLAIN, PLAIN, WORD, WORD, PLAIN, EOS]
    c = coins_of(params, 4)
    assert authorship(stream, params, {WORD}) == [c[0], c[0], c[1], c[1], c[1], c[2], c[3], c[3]]


def test_word_caps_a_run_at_exactly_max_gap_tokens():
    params = ScheduleParams(max_gap_tokens=32, seed=5)
    c = coins_of(params, 4)
    assert authorship([PLAIN] * 100, params, {WORD}) == [c[0]] * 32 + [c[1]] * 32 + [c[2]] * 32 + [c[3]] * 4


def test_a_boundary_restarts_the_cap():
    params = ScheduleParams(max_gap_tokens=4, seed=8)
    c = coins_of(params, 4)
    stream = [PLAIN, PLAIN, WORD, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN]
    assert authorship(stream, params, {WORD}) == [c[0]] * 3 + [c[1]] * 4 + [c[2]]


def test_a_boundary_at_the_cap_draws_once():
    params = ScheduleParams(max_gap_tokens=2, seed=9)
    schedule = AuthorSchedule(params, {WORD})
    for token in (PLAIN, WORD):
        schedule.advance(token)
    assert schedule.redraws == 2


def test_end_of_sequence_belongs_to_the_author_of_the_moment_and_is_no_boundary():
    params = ScheduleParams(seed=1)
    schedule = AuthorSchedule(params, {WORD})
    schedule.advance(WORD)
    writer, drawn = schedule.author, schedule.redraws
    schedule.advance(EOS)
    assert (schedule.author, schedule.redraws) == (writer, drawn)


def test_the_first_author_is_a_draw_for_word_and_bernoulli_only():
    for name in ("word", "bernoulli"):
        first = {authorship([PLAIN], ScheduleParams(name, seed=s), {WORD})[0] for s in range(40)}
        assert first == {SENIOR, JUNIOR}
    for name, author in (("chunk", 1), ("alternating", 1), ("sentence", 1), ("senior", 1), ("junior", 0)):
        assert {authorship([PLAIN], ScheduleParams(name, seed=s), {WORD})[0] for s in range(40)} == {author}


def test_bernoulli_draws_for_every_token():
    params = ScheduleParams("bernoulli", prob_senior=0.3, seed=4)
    assert authorship([PLAIN, WORD] * 20, params) == coins_of(params, 40)


def test_alternating_starts_with_the_senior_and_ignores_p():
    assert authorship([PLAIN] * 5, ScheduleParams("alternating", prob_senior=0.0)) == [1, 0, 1, 0, 1]


def test_chunk_counts_the_tokens_of_each_turn():
    assert authorship([WORD] * 8, ScheduleParams("chunk", chunk_size=3, prob_senior=0.0)) == [1, 1, 1, 0, 0, 0, 1, 1]


def test_sentence_toggles_after_each_paragraph_break_and_ignores_p():
    stream = [PLAIN, WORD, PARAGRAPH, PLAIN, PARAGRAPH, PARAGRAPH, PLAIN]
    params = ScheduleParams("sentence", prob_senior=0.0)
    assert authorship(stream, params, {PARAGRAPH}) == [1, 1, 1, 0, 0, 1, 0]


def test_before_takes_a_words_first_piece_from_the_new_author():
    params = ScheduleParams(word_align="before", max_gap_tokens=4, seed=21)
    c = coins_of(params, 4)
    schedule, offered = AuthorSchedule(params, {WORD}), []
    for token in (WORD, PLAIN, WORD, PLAIN, PLAIN, PLAIN, PLAIN):
        offered.append(schedule.offer(token))
        schedule.advance(token)
    # the first token's author was drawn a moment ago; the last redraw is the cap of 4
    assert offered == [c[0], c[0], c[1], c[1], c[1], c[1], c[2]]
    with pytest.raises(ValueError, match="not emitted"):
        authorship([WORD], params, {WORD})


@given(params=any_params, tokens=any_tokens)
def test_certain_probabilities_are_certain(params, tokens):
    if params.selection_strategy in ("word", "bernoulli"):
        for p in (0, 1, 0.0, 1.0):
            certain = ScheduleParams(params.selection_strategy, p, seed=params.seed, request=params.request)
            assert authorship(tokens, certain, {WORD}) == [int(p)] * len(tokens)


@given(any_params, st.sampled_from([0.0, 0.3, 1.0]), any_tokens)
def test_one_author_is_claimed_where_it_is_certain_and_nowhere_else(params, p, tokens):
    params = dataclasses.replace(params, prob_senior=p)
    mask = authorship(tokens, params, boundary_of(params))
    assert not params.has_one_author or len(set(mask)) <= 1
    assert params.has_one_author == (
        params.selection_strategy in ("senior", "junior")
        or (params.selection_strategy in ("word", "bernoulli") and p in (0, 1))
    )


@given(params=any_params, tokens=any_tokens, cut=st.integers(0, 120))
def test_a_prefix_decides_the_authors_of_the_prefix(params, tokens, cut):
    whole = authorship(tokens, params, boundary_of(params))
    assert authorship(tokens[:cut], params, boundary_of(params)) == whole[:cut]


@given(params=any_params, tokens=any_tokens)
def test_no_turn_outlasts_its_cap_without_a_coin(params, tokens):
    schedule = AuthorSchedule(params, boundary_of(params))
    for token in tokens:
        schedule.advance(token)
        if params.selection_strategy == "word":
            assert schedule.since < params.max_gap_tokens
        if params.selection_strategy == "chunk":
            assert schedule.since < params.chunk_size


@settings(max_examples=60)
@given(
    batch=st.lists(st.tuples(any_params, any_tokens, st.integers(0, 30)), min_size=1, max_size=12),
    order=st.randoms(use_true_random=False),
)
def test_the_table_names_the_same_authors_in_any_order_of_steps(batch, order):
    table = ScheduleTable(BOUNDARY, VOCAB, capacity=2)
    rows = [table.add(params, tokens[:cut]) for params, tokens, cut in batch]
    position = [min(cut, len(tokens)) for _, tokens, cut in batch]
    masks = [
        authorship(tokens[:at], params, boundary_of(params))
        for (params, tokens, _), at in zip(batch, position, strict=True)
    ]
    while live := [i for i, (_, tokens, _) in enumerate(batch) if position[i] < len(tokens)]:
        step = order.sample(live, order.randint(1, len(live)))
        for i in step:
            masks[i].append(int(table.author[rows[i]]))
        table.advance(np.array([rows[i] for i in step]), np.array([batch[i][1][position[i]] for i in step]))
        for i in step:
            position[i] += 1
    for (params, tokens, _), mask in zip(batch, masks, strict=True):
        assert mask == authorship(tokens, params, boundary_of(params))


@given(
    tokens=any_tokens,
    p=st.floats(0, 1),
    cap=st.integers(1, 9),
    seed=st.integers(0, 99),
    other=st.integers(0, VOCAB - 1),
)
def test_the_table_offers_as_the_schedule_does(tokens, p, cap, seed, other):
    params = ScheduleParams(prob_senior=p, max_gap_tokens=cap, word_align="before", seed=seed)
    one, table = AuthorSchedule(params, {WORD}), ScheduleTable(BOUNDARY, VOCAB)
    rows = np.array([table.add(params)])
    for token in tokens:
        before = one.author
        assert table.author[rows].tolist() == [before]
        author = one.offer(token)
        assert table.offer(rows, np.array([token])).tolist() == [author]
        emitted = token if author == before else other
        one.advance(emitted)
        table.advance(rows, np.array([emitted]))
    with pytest.raises(ValueError, match="cannot be resumed"):
        table.add(params, [PLAIN])


def test_an_offered_word_draws_after_one_token_and_not_before():
    for seed in range(8):
        params = ScheduleParams(word_align="before", max_gap_tokens=4, seed=seed)
        one, table, c = AuthorSchedule(params, {WORD}), ScheduleTable(BOUNDARY, VOCAB), coins_of(params, 4)
        rows, offered, by_table = np.array([table.add(params, iter(()))]), [], []
        for token in (WORD, WORD, PLAIN, WORD):
            offered.append(one.offer(token))
            one.advance(token)
            by_table += table.offer(rows, np.array([token])).tolist()
            table.advance(rows, np.array([token]))
        assert offered == by_table == [c[0], c[1], c[1], c[2]]


def test_rows_are_reused_without_a_trace():
    table = ScheduleTable(BOUNDARY, VOCAB, capacity=1)
    params = ScheduleParams(seed=2)
    row = table.add(ScheduleParams("chunk", chunk_size=5))
    table.advance(np.array([row]), np.array([PLAIN]))
    table.remove(row)
    assert table.add(params) == row
    mask = []
    for _ in range(70):
        mask.append(int(table.author[row]))
        table.advance(np.array([row]), np.array([PLAIN]))
    assert mask == authorship([PLAIN] * 70, params, {WORD})


def test_the_senior_share_over_redraws_lies_within_four_standard_deviations():
    for p in (0.5, 0.2):
        draws = [
            senior for request in range(400) for senior in coins_of(ScheduleParams(prob_senior=p, request=request), 50)
        ]
        assert abs(np.mean(draws) - p) < 4 * math.sqrt(p * (1 - p) / len(draws))


# The generator's published outputs for the seed 0 (Steele, Lea and Flood, 2014; the same in every port of it).
SPLITMIX64_OF_0 = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC)


def test_coins_are_the_upper_53_bits_of_splitmix64():
    """A run resumed with a later release must draw the coins that its first part drew."""
    assert [coin(0, k) for k in range(4)] == [output >> 11 for output in SPLITMIX64_OF_0]
    # One step of the generator on the seed, the request added, and the finaliser once more.
    assert stream_key(0, 0) == schedule_module.mix64(SPLITMIX64_OF_0[0])
    assert stream_key(0, 1) == schedule_module.mix64(SPLITMIX64_OF_0[0] + 1)
    assert stream_key(-1, 0) == stream_key(2**64 - 1, 0)


def test_request_keys_stay_the_same_from_release_to_release():
    gamma, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    one = schedule_module.mix64(((1 + gamma) & mask) ^ schedule_module.mix64(7))
    assert request_key(7) == one >> 1
    two = schedule_module.mix64(((2 + gamma) & mask) ^ schedule_module.mix64(7))
    two = schedule_module.mix64(((two + gamma) & mask) ^ schedule_module.mix64(-3 & mask))
    assert request_key(7, -3) == two >> 1


@pytest.mark.parametrize(("p", "count"), [(0, 0), (1, 2**53), (0.5, 2**52), (2**-53, 1), (1e-300, 1), (0.25, 2**51)])
def test_the_threshold_counts_the_coins_of_the_senior(p, count):
    assert senior_threshold(p) == count


def test_a_coin_at_the_threshold_falls_on_the_junior():
    """So that of the 2**53 coins exactly as many fall on the senior as its threshold says."""
    key = stream_key(0, 0)
    for drawn, author in ((coin(key, 0), JUNIOR), (coin(key, 0) + 1, SENIOR)):
        params = ScheduleParams(prob_senior=drawn / 2**53)
        assert senior_threshold(params.prob_senior) == drawn
        assert AuthorSchedule(params, {WORD}).author == author


@pytest.mark.parametrize(
    ("names", "least", "most"),
    [(("max_gap_tokens", "chunk_size"), 1, 2**31 - 1), (("seed", "request"), -(2**63), 2**64 - 1)],
)
def test_numbers_have_exact_limits(names, least, most):
    for name in names:
        for value in (least, most):
            assert getattr(ScheduleParams(**{name: value}), name) == value
        for value in (least - 1, most + 1):
            with pytest.raises(ValueError, match=f"{name} is"):
                ScheduleParams(**{name: value})


def test_streams_of_neighbouring_requests_and_seeds_are_unrelated():
    streams = np.array([coins_of(ScheduleParams(seed=s, request=r), 256) for s in range(6) for r in range(6)])
    correlation = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlation).max() < 5 / math.sqrt(256)


def test_request_keys_differ_by_part_order_and_number():
    keys = [request_key(*parts) for parts in [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (2, 3, 4), (3, 2, 4)]]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**63 for key in keys)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (dict(selection_strategy="words"), "selection_strategy is 'words'.*word"),
        (dict(prob_senior=1.01), "prob_senior is 1.01"),
        (dict(prob_senior=float("nan")), "prob_senior"),
        (dict(prob_senior="0.5"), "prob_senior"),
        (dict(prob_senior=True), "prob_senior"),
        (dict(max_gap_tokens=2.5), "max_gap_tokens"),
        (dict(word_align="inside"), "word_align"),
        (dict(word_align="before", selection_strategy="chunk"), "word_align 'before'"),
        (dict(seed="7"), "seed"),
        (dict(request=None), "request"),
    ],
)
def test_bad_parameters_are_refused_by_name(bad, says):
    with pytest.raises(ValueError, match=says):
        ScheduleParams(**bad)


def test_an_empty_boundary_set_is_refused_where_one_is_needed():
    for name in ("word", "sentence"):
        with pytest.raises(ValueError, match="boundary token ids"):
            authorship([PLAIN], ScheduleParams(name), frozenset())


def test_a_new_strategy_registers_by_name(monkeypatch):
    monkeypatch.setattr(schedule_module, "STRATEGIES", dict(STRATEGIES))
    monkeypatch.setattr("vllm_patches.tandem.schedule_table.STRATEGIES", schedule_module.STRATEGIES)
    even_turns = Strategy(
        start=JUNIOR, toggles=lambda boundary, since, params: boundary & (since >= 2), boundary="word"
    )
    register_strategy("word_pairs", even_turns)
    register_strategy("word_pairs", even_turns)
    params = ScheduleParams("word_pairs")
    stream = [WORD, PLAIN, WORD, PLAIN, WORD]
    assert authorship(stream, params, {WORD}) == [0, 0, 0, 1, 1]
    table = ScheduleTable(BOUNDARY, VOCAB)
    row, mask = table.add(params), []
    for token in stream:
        mask.append(int(table.author[row]))
        table.advance(np.array([row]), np.array([token]))
    assert mask == [0, 0, 0, 1, 1]
    with pytest.raises(ValueError, match="registered already"):
        register_strategy("word_pairs", Strategy(start=SENIOR))
    with pytest.raises(ValueError, match="boundary"):
        register_strategy("page", Strategy(start=SENIOR, boundary="page"))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_the_tables_mixing_is_that_of_the_schedule_to_the_last_bit(numbers):
    assert mix64_array(np.array(numbers, dtype=np.uint64)).tolist() == [mix64(number) for number in numbers]


def test_a_coin_of_the_table_at_the_threshold_falls_on_the_junior():
    key = stream_key(3, 4)
    keys, thresholds = np.full(2, key, dtype=np.uint64), np.array([coin(key, 0), coin(key, 0) + 1], dtype=np.uint64)
    assert coin_authors(keys, thresholds, np.zeros(2, dtype=np.uint64)).tolist() == [JUNIOR, SENIOR]
