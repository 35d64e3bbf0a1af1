"""The schedule run ahead over drafts says what the scalar schedule says, token by token."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_patches.tandem.schedule import AuthorSchedule, ScheduleParams
from vllm_patches.tandem.schedule_table import ScheduleTable
from vllm_patches.tandem.speculative.round import commit, replay

VOCAB = 12
BOUNDARIES = {"word": [2, 3, 5, 7], "sentence": [4, 6, 11]}


pytestmark = pytest.mark.usefixtures("strategy_with_both_kinds_of_turn")
REQUESTS = st.tuples(
    st.sampled_from(["word", "bernoulli", "alternating", "chunk", "sentence", "senior", "junior", "both"]),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 1 << 40),
    st.lists(st.integers(0, VOCAB - 1), max_size=9),
)


@given(st.data(), st.lists(REQUESTS, min_size=1, max_size=6), st.integers(0, 9))
def test_it_equals_the_scalar_schedule_and_commits_what_was_emitted(data, requests, num_drafts):
    table = ScheduleTable(BOUNDARIES, VOCAB, capacity=2)
    rows, scalars = [], []
    for name, p, gap, size, request, emitted in requests:
        params = ScheduleParams(name, prob_senior=p, max_gap_tokens=gap, chunk_size=size, seed=3, request=request)
        rows.append(table.add(params, emitted))
        scalars.append(AuthorSchedule(params, BOUNDARIES.get(params.strategy.boundary, ())))
        for token in emitted:
            scalars[-1].advance(token)
    token = st.integers(0, VOCAB - 1)
    drafts = data.draw(
        st.lists(st.lists(token, min_size=num_drafts, max_size=num_drafts), min_size=len(rows), max_size=len(rows))
    )
    before = {name: getattr(table, name).copy() for name in ("author", "since", "redraws")}
    ahead = replay(table, np.array(rows), np.array(drafts))
    for name, column in before.items():
        assert np.array_equal(getattr(table, name), column), "running ahead must not move the table"
    for i, scalar in enumerate(scalars):
        walker = copy.copy(scalar)
        for k in range(num_drafts + 1):
            found = (ahead.authors[i, k], ahead.since[i, k], ahead.redraws[i, k])
            assert found == (walker.author, walker.since, walker.redraws), (requests[i], drafts[i], k)
            if k < num_drafts:
                walker.advance(drafts[i][k])

    stood = data.draw(st.lists(st.integers(0, num_drafts), min_size=len(rows), max_size=len(rows)))
    emitted = [
        d[:n] + ([data.draw(token)] if data.draw(st.booleans()) else []) for d, n in zip(drafts, stood, strict=True)
    ]
    commit(table, np.array(rows), ahead, emitted)
    for row, scalar, tokens in zip(rows, scalars, emitted, strict=True):
        for one in tokens:
            scalar.advance(one)
        assert (table.author[row], table.since[row], table.redraws[row]) == (
            scalar.author,
            scalar.since,
            scalar.redraws,
        )


def test_a_repeated_coin_is_the_one_the_table_would_draw():
    """Committing k tokens one by one and in one go leave the same coins for what follows."""
    params = ScheduleParams("bernoulli", request=5)
    one, many = (ScheduleTable({}, VOCAB) for _ in range(2))
    row = np.array([one.add(params)])
    many.add(params)
    for token in (1, 2, 3):
        one.advance(row, np.array([token]))
    commit(many, row, replay(many, row, np.array([[1, 2, 9]])), [[1, 2, 3]])
    assert (one.author[row], one.redraws[row]) == (many.author[row], many.redraws[row])
