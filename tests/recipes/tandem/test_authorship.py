"""The mask that is trained on: verified against the schedule, refused when lost, counted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.tandem.authorship import (
    Authorship,
    count_authorship,
    replay,
    response_identity,
    verified,
)
from vllm_patches.tandem.outputs import AuthorshipError
from vllm_patches.tandem.schedule import STRATEGIES, ScheduleParams, authorship, request_key

BOUNDARY = frozenset(range(0, 50, 5))
TOKENS = st.lists(st.integers(0, 49), max_size=200)


def params_of(name, request=7, p=0.5):
    return ScheduleParams(selection_strategy=name, prob_senior=p, max_gap_tokens=4, chunk_size=3, request=request)


@given(TOKENS, st.sampled_from(sorted(STRATEGIES)), st.integers(0, 2**62))
def test_the_engines_mask_is_accepted_and_any_other_refused(tokens, name, request):
    params = params_of(name, request)
    mask = authorship(tokens, params, BOUNDARY)
    counts = verified(mask, tokens, params, BOUNDARY)
    assert (counts.tokens, counts.senior_tokens) == (len(tokens), sum(mask))
    for position in range(len(mask)):
        flipped = [*mask[:position], 1 - mask[position], *mask[position + 1 :]]
        with pytest.raises(AuthorshipError, match=f"token {position} is marked as author"):
            verified(flipped, tokens, params, BOUNDARY)


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (None, "returned no authorship mask"),
        ([1, 0], "has 2 entries for 3 tokens"),
        ([1, 0, 1, 1], "has 4 entries for 3 tokens"),
        ([], "has 0 entries"),
        ([1, 2, 0], r"holds \[2\]"),
        ("101", "is str"),
    ],
)
@pytest.mark.parametrize("align", ["after", "before"])
def test_a_lost_or_misshapen_mask_is_refused(mask, sentence, align):
    with pytest.raises(AuthorshipError, match=sentence):
        verified(mask, [1, 2, 3], ScheduleParams(word_align=align), BOUNDARY)


def test_word_align_before_takes_the_engines_word():
    assert verified([1, 0, 0], [5, 5, 5], ScheduleParams(word_align="before"), BOUNDARY).turns == 2


@given(TOKENS, st.integers(0, 2**62))
def test_replay_is_the_engines_recomputation_and_counts_each_coin_once(tokens, request):
    params = params_of("word", request)
    mask, drawn = replay(tokens, params, BOUNDARY)
    assert mask == authorship(tokens, params, BOUNDARY)
    runs, gap = 0, 0
    for position, _ in enumerate(tokens):
        if position == 0 or tokens[position - 1] in BOUNDARY or gap == 4:
            runs, gap = runs + 1, 0
        gap += 1
    assert len(drawn) == runs


def test_a_response_is_replayed_once(monkeypatch):
    from recipes.tandem import authorship as module
    from vllm_patches.tandem import schedule

    made = []

    class Counted(schedule.AuthorSchedule):
        def __init__(self, *args):
            made.append(args)
            super().__init__(*args)

    params = params_of("word")
    mask = authorship(range(30), params, BOUNDARY)
    monkeypatch.setattr(schedule, "AuthorSchedule", Counted)
    monkeypatch.setattr(module, "AuthorSchedule", Counted)
    verified(mask, range(30), params, BOUNDARY)
    assert len(made) == 1


def test_strategies_without_coins_have_no_redraws():
    for name in ("alternating", "chunk", "sentence", "senior", "junior"):
        assert replay(range(20), params_of(name), BOUNDARY)[1] == []


def test_metrics_of_two_responses_by_hand():
    total = count_authorship([1, 1, 0, 1], [1, 0, 1]) + count_authorship([0, 0], [0])
    assert total == Authorship(responses=2, tokens=6, senior_tokens=3, turns=4, redraws=4, senior_redraws=2)
    assert total.metrics() == {
        "tandem/senior_token_share": 0.5,
        "tandem/switches_per_response": 1.0,
        "tandem/tokens_per_turn": 1.5,
        "tandem/redraws_per_response": 2.0,
        "tandem/senior_redraw_share": 0.5,
    }
    assert math.isnan(Authorship().metrics()["tandem/senior_token_share"])


def test_turns_are_runs_of_one_author():
    masks = {(1,): 1, (0,): 1, (1, 1, 1): 1, (1, 0, 1): 3, (1, 1, 0, 1): 3, (): 0}
    assert {mask: count_authorship(mask).turns for mask in masks} == masks


def test_nothing_counted_is_zero():
    assert Authorship() == Authorship(0, 0, 0, 0, 0, 0)


def test_deviation_counts_standard_deviations_of_a_binomial():
    assert Authorship(redraws=100, senior_redraws=60).deviation(0.5) == pytest.approx(2.0)
    assert Authorship(redraws=100, senior_redraws=100).deviation(1.0) == 0.0
    assert Authorship(redraws=100, senior_redraws=99).deviation(1.0) == math.inf
    assert Authorship().deviation(0.5) == 0.0
    assert Authorship(redraws=1, senior_redraws=1).deviation(0.5) == pytest.approx(1.0)


def test_the_share_over_many_responses_is_near_p():
    total = Authorship()
    for index in range(400):
        request = response_identity(index, step=3, sample=index % 8, validation=False)
        params = params_of("word", request, p=0.3)
        tokens = [(index * 31 + 7 * i * i) % 50 for i in range(100)]
        total += verified(authorship(tokens, params, BOUNDARY), tokens, params, BOUNDARY)
    assert total.redraws > 10_000 and total.deviation(0.3) < 4


def test_identities_are_pure_and_apart():
    places = [(i, s, k, v) for i in range(6) for s in range(5) for k in range(4) for v in (False, True)]
    assert len({response_identity(*place) for place in places}) == len(places)
    assert response_identity(4, 2, 1, False) == response_identity(4, 2, 1, False)


def test_identities_stay_the_same_from_release_to_release():
    assert response_identity(4, 2, 1, validation=False) == request_key(4, 2, 1, 0)
    assert response_identity(4, 2, 1, validation=True) == request_key(4, 2, 1, 1)
