"""Schedules on the device say what the scalar schedule says, token by token."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from vllm_patches.tandem.schedule import STRATEGIES, AuthorSchedule, ScheduleParams  # noqa: E402
from vllm_patches.tandem.speculative.v2.device_schedule import DeviceSchedules  # noqa: E402

VOCAB = 12
BOUNDARIES = {"word": [2, 3, 5, 7], "sentence": [4, 6, 11]}
pytestmark = pytest.mark.usefixtures("strategy_with_both_kinds_of_turn")
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=9)
REQUESTS = st.tuples(
    st.sampled_from([*sorted(STRATEGIES), "both"]),
    st.sampled_from([0.0, 0.3, 0.5, 1 - 2**-53, 1.0]),
    st.sampled_from([1, 2, 5, 2**31 - 1]),
    st.sampled_from([1, 2, 4, 2**31 - 1]),
    st.sampled_from([0, 1, -1, 2**63 - 1, 2**64 - 1, -(2**63)]) | st.integers(0, 1 << 40),
    TOKENS,
)


@given(st.data(), st.lists(REQUESTS, min_size=1, max_size=6), st.integers(0, 9))
def test_it_equals_the_scalar_schedule_and_commits_what_was_emitted(data, requests, num_drafts):
    schedules = DeviceSchedules(BOUNDARIES, VOCAB, 9, torch.device("cpu"))
    slots = data.draw(st.permutations(range(9)))[: len(requests)]
    written, scalars = [], []
    for name, p, gap, size, request, emitted in requests:
        params = ScheduleParams(name, prob_senior=p, max_gap_tokens=gap, chunk_size=size, seed=3, request=request)
        written.append((params, emitted))
        scalars.append(AuthorSchedule(params, BOUNDARIES.get(params.strategy.boundary, ())))
        for token in emitted:
            scalars[-1].advance(token)
    for at in range(0, len(slots), 2):  # requests come in over several steps
        schedules.start(slots[at : at + 2], written[at : at + 2])
    at = torch.tensor(slots)
    token = st.integers(0, VOCAB - 1)
    drafts = [data.draw(st.lists(token, min_size=num_drafts, max_size=num_drafts)) for _ in slots]
    ahead = schedules.ahead(schedules.of(at), torch.tensor(drafts, dtype=torch.int64).view(len(slots), num_drafts))
    for i, scalar in enumerate(scalars):
        walker = copy.copy(scalar)
        for k in range(num_drafts + 1):
            found = [int(getattr(ahead[k], name)[i]) for name in ("author", "since", "redraws")]
            assert found == [walker.author, walker.since, walker.redraws], (requests[i], drafts[i], k)
            if k < num_drafts:
                walker.advance(drafts[i][k])

    emitted = torch.full((len(slots), num_drafts + 1), -1)
    counts = torch.zeros(len(slots), dtype=torch.int64)
    for i, scalar in enumerate(scalars):
        stood = data.draw(st.integers(0, num_drafts))
        tokens = drafts[i][:stood] + ([data.draw(token)] if data.draw(st.booleans()) else [])
        counts[i] = len(tokens)
        emitted[i, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        for one in tokens:
            scalar.advance(one)
    schedules.commit(at, ahead, emitted, counts)
    now = schedules.of(at)
    for i, scalar in enumerate(scalars):
        found = [int(getattr(now, name)[i]) for name in ("author", "since", "redraws")]
        assert found == [scalar.author, scalar.since, scalar.redraws]
