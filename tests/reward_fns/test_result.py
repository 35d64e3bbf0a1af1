"""Score, Skip and Fail: what a reward function's return value comes to, and what reaches verl."""

import contextlib
import json
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_fns import errors
from reward_fns.errors import BudgetSpent, OptionError, ResultError, RewardError
from reward_fns.result import (
    VERL_KEYS,
    Fail,
    FailureBudget,
    RunningBudget,
    Score,
    Skip,
    count_reasons,
    from_verl,
    normalise,
    to_verl,
)


class Hostile:
    """Raises from everything a careless reader might call."""

    def _refuse(self, *_args):
        raise RuntimeError("do not touch")

    __float__ = __str__ = __repr__ = __len__ = __iter__ = __bool__ = __eq__ = _refuse
    __hash__ = None

    def item(self):
        raise RuntimeError("do not touch")


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (1, 1.0),
        (0.25, 0.25),
        (-3, -3.0),
        (True, 1.0),
        (False, 0.0),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array(0.5), 0.5),
        (np.array([0.5]), 0.5),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 2), 0.5),
        ({"score": 0.5}, 0.5),
        ({"score": np.float64(0.5), "anything": object()}, 0.5),
    ],
)
def test_numbers_become_scores(raw, value):
    result = normalise(raw)
    assert isinstance(result, Score) and result.value == value and type(result.value) is float


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (None, "none"),
        (math.nan, "not_finite"),
        (math.inf, "not_finite"),
        (-math.inf, "not_finite"),
        (np.float64("nan"), "not_finite"),
        (np.array(np.inf), "not_finite"),
        (10**400, "not_finite"),
        (1j, "not_finite"),
        ({"score": math.nan}, "not_finite"),
        ({"score": None}, "none"),
        ({}, "no_score_key"),
        ({"reward": 1.0}, "no_score_key"),
        ({"score": {"score": 1.0}}, "not_a_number:dict"),
        ("1.0", "not_a_number:str"),
        ([1.0], "not_a_number:list"),
        ((1.0, {}), "not_a_number:tuple"),
        (object(), "not_a_number:object"),
        (np.array([1.0, 2.0]), "not_finite"),
        (Hostile(), "not_finite"),
        ({"score": Hostile()}, "not_finite"),
    ],
)
def test_what_is_no_number_is_a_skip_and_never_a_zero(raw, reason):
    assert normalise(raw) == Skip(reason)


def test_results_pass_through():
    for result in (Score(0.5, "partial", "42"), Skip("pool_down"), Fail("stop")):
        assert normalise(result) is result
        assert normalise(to_verl(result)) == result


def test_a_result_in_a_condition_is_right_or_wrong_and_what_is_neither_raises():
    assert Score(1.0) and Score(0.5) and not Score(0.0) and not Score(-1.0)
    for unjudged in (Skip("pool_down"), Fail("stop")):
        with pytest.raises(ResultError, match=unjudged.reason):
            bool(unjudged)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.complex_numbers() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*VERL_KEYS, "x"]) | st.text(max_size=5), inner, max_size=8)
    ),
    max_leaves=8,
)


@given(ANYTHING)
def test_normalise_never_raises_and_verl_always_gets_the_same_keys(raw):
    try:
        result = normalise(raw)
    except ResultError:
        pytest.fail("normalise raised")
    fields = to_verl(result)
    assert tuple(fields) == VERL_KEYS
    for key, value in fields.items():
        assert type(value) is (str if key in ("status", "reason", "pred") else float), key
        assert isinstance(value, str) or math.isfinite(value)
    assert fields["skipped"] == float(not isinstance(result, Score))
    assert from_verl(fields) == result
    json.dumps(fields, ensure_ascii=False).encode("utf-8")


@given(st.text(st.characters(), max_size=400))
def test_any_text_is_bounded_and_encodable(text):
    score = Score(0.0, text, text)
    assert len(score.pred) <= 256 and len(score.reason) <= 500
    (score.pred + score.reason).encode("utf-8")


def test_a_score_must_be_a_finite_number():
    for value in (math.nan, math.inf, None, "1", 1j):
        with pytest.raises(ResultError):
            Score(value)
    assert Score(0.0).acc == 0.0 and Score(0.3).acc == 1.0 and Score(1.0, acc=0.0).acc == 0.0 and Score(-1.0).acc == 0.0


def test_from_verl_refuses_what_it_did_not_write():
    with pytest.raises(ResultError, match="missing"):
        from_verl({"score": 1.0})
    with pytest.raises(ResultError, match="status"):
        from_verl(dict(to_verl(Score(1.0)), status="perhaps"))
    with pytest.raises(ResultError):
        to_verl(1.0)


@pytest.mark.parametrize(
    ("skips", "total", "share", "min_count", "fails"),
    [(0, 10, 0.0, 1, False), (1, 10, 0.0, 1, True), (1, 10, 0.1, 1, False), (2, 10, 0.1, 1, True)]
    + [(2, 10, 0.1, 3, False), (3, 10, 0.1, 3, True), (10, 10, 1.0, 1, False), (0, 0, 0.0, 1, False)],
)
def test_the_budget_allows_exactly_its_share(skips, total, share, min_count, fails):
    batch = [Skip("pool_down")] * skips + [Score(1.0)] * (total - skips)
    verdict = FailureBudget(share, min_count).verdict(batch)
    assert (verdict is not None) == fails


def test_a_fail_names_its_causes_and_stops_at_once():
    batch = [Skip("gold_missing")] * 3 + [Skip("pool_down")] + [Score(0.0)] * 4
    assert "gold_missing x3, pool_down x1" in FailureBudget(0.1).verdict(batch).reason
    assert "4 of 8" in FailureBudget(0.1).verdict(batch).reason
    assert FailureBudget(1.0).verdict([Score(1.0), Fail("judge_status_401")]) == Fail("judge_status_401")
    with pytest.raises(BudgetSpent, match="gold_missing"):
        FailureBudget(0.1).require(batch)


def test_the_running_budget_forgets_what_left_its_window():
    running = RunningBudget(FailureBudget(0.5, min_count=2), window=4)
    for result in [Skip("a"), Score(1.0), Score(1.0), Skip("a"), Score(0.0), Score(0.0), Skip("b")]:
        running.add(result)
    with pytest.raises(BudgetSpent):
        running.add(Skip("b")) or running.add(Skip("b"))


def test_a_batch_counts_with_what_came_before_it_and_a_larger_one_alone():
    down, up = [Skip("starved")] * 6, [Score(1.0)] * 6
    running = RunningBudget(FailureBudget(0.1, min_count=16))
    running.require(down)
    running.require(down)
    with pytest.raises(BudgetSpent, match="18 of 18"):
        running.require(down)
    for _ in range(43):
        with contextlib.suppress(BudgetSpent):
            running.require(up)
    running.require(down * 5 + up * 45)
    with pytest.raises(BudgetSpent, match="36 of 300"):
        running.require(down * 6 + up * 44)


def test_wrong_budgets_are_refused():
    for arguments in ((-0.1, 1), (1.1, 1), (0.1, 0), (math.nan, 1)):
        with pytest.raises(OptionError):
            FailureBudget(*arguments)


def test_reasons_are_counted_without_their_details():
    counts = count_reasons([Score(1.0), Score(0.0, "wrong"), Skip("raised:A"), Skip("raised:B"), Fail("stop")])
    assert counts == {"score/ok": 1, "score/wrong": 1, "skip/raised": 2, "fail/stop": 1}


def test_every_exception_is_of_one_family_a_standard_error_and_picklable():
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RewardError)]
    assert len(found) > 5
    for kind in found:
        if kind is not RewardError:
            assert issubclass(kind, ValueError | TypeError | RuntimeError)
        more = ("time_out",) if kind is errors.EndpointError else ()
        copy = pickle.loads(pickle.dumps(kind("why", *more)))
        assert type(copy) is kind and str(copy) == "why"


def test_results_are_picklable():
    for result in (Score(0.5, "r", "p"), Skip("s"), Fail("f")):
        assert pickle.loads(pickle.dumps(result)) == result
