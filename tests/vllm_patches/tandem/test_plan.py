"""The lazy plan keeps its invariants, and is the plan a plain loop would make."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_patches.tandem.plan import model_run, plan_lazy
from vllm_patches.tandem.schedule import JUNIOR, SENIOR


def loop_plan(starts, ends, samples, authors, computed, alone, max_lag):
    """One request at a time: {model: {row: (start, end)}} and the writers."""
    ranges, writers = {JUNIOR: {}, SENIOR: {}}, []
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        writer = authors[row] if samples[row] else SENIOR
        writers.append(writer)
        prefill = end - start > 1 or not samples[row]
        for model in (JUNIOR, SENIOR):
            behind = end - min(computed[JUNIOR][row], computed[SENIOR][row])
            if model == writer or prefill or (behind > max_lag and not alone[row]):
                ranges[model][row] = (computed[model][row], end)
    return ranges, writers


@st.composite
def one_step(draw):
    rows = draw(st.integers(1, 8))
    starts = np.array(draw(st.lists(st.integers(0, 200), min_size=rows, max_size=rows)))
    lengths = np.array(draw(st.lists(st.sampled_from([1, 1, 1, 2, 40]), min_size=rows, max_size=rows)))
    lag = np.array([draw(st.lists(st.integers(0, 12), min_size=rows, max_size=rows)) for _ in range(2)])
    computed = np.maximum(starts - lag, 0)
    samples = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    authors = np.array(draw(st.lists(st.sampled_from([JUNIOR, SENIOR]), min_size=rows, max_size=rows)))
    return (
        starts,
        starts + lengths,
        samples,
        authors,
        computed,
        np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows))),
        draw(st.integers(1, 20)),
        draw(st.sampled_from([40, 80, 10_000])),
    )


@given(one_step())
def test_the_plan_is_the_loops(step):
    starts, ends, _, _, computed, _, _, _ = step
    ranges, writers = loop_plan(*step[:-1])
    plan = plan_lazy(*step)
    assert plan.writers.tolist() == writers
    for model in (JUNIOR, SENIOR):
        run = plan.runs[model]
        planned = (
            {}
            if run is None
            else {int(r): (int(s), int(e)) for r, s, e in zip(run.rows, run.starts, run.ends, strict=True)}
        )
        assert planned == ranges[model]
        if run is not None:
            assert all((np.diff(one.lengths) >= 0).all() for one in run.split())
            assert run.offsets.tolist() == np.concatenate([[0], np.cumsum(run.lengths)]).tolist()
        after = [ranges[model].get(row, (0, computed[model, row]))[1] for row in range(len(starts))]
        assert plan.computed[model].tolist() == after


@settings(max_examples=60)
@given(
    prompts=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    alone=st.lists(st.booleans(), min_size=5, max_size=5),
    authors=st.randoms(use_true_random=False),
    max_lag=st.sampled_from([1, 4, 16]),
    budget=st.integers(8, 40),
)
def test_over_a_generation_no_token_is_missed_and_only_idle_models_lag(prompts, alone, authors, max_lag, budget):
    rows, goal = len(prompts), [p + 30 for p in prompts]
    known, starts, alone = np.array(prompts), np.zeros(rows, dtype=np.int64), np.array(alone[:rows])
    computed, written = np.zeros((2, rows), dtype=np.int64), [[set() for _ in range(rows)] for _ in range(2)]
    who = np.array([authors.choice([JUNIOR, SENIOR]) for _ in range(rows)])
    while (starts < goal).any():
        live = np.flatnonzero(starts < goal)
        ends = np.minimum(known, starts + max(1, budget // rows))
        samples = ends == known
        who = np.where(alone, who, [authors.choice([JUNIOR, SENIOR]) for _ in range(rows)])
        plan = plan_lazy(
            starts[live], ends[live], samples[live], who[live], computed[:, live], alone[live], max_lag, budget
        )
        for model in (JUNIOR, SENIOR):
            run = plan.runs[model]
            for row, start, end in [] if run is None else zip(run.rows, run.starts, run.ends, strict=True):
                cells = written[model][live[row]]
                assert cells == set(range(start)), "a query must continue what the model holds"
                cells.update(range(start, end))
        computed[:, live] = plan.computed
        for row in live:
            if samples[row]:
                assert len(written[who[row]][row]) == ends[row], "the writer has seen the whole text"
            assert computed[:, row].tolist() == [len(written[model][row]) for model in (JUNIOR, SENIOR)]
            assert alone[row] or ends[row] - computed[:, row].min() <= max_lag
            known[row] += int(samples[row])
        starts[live] = ends[live]
    for row in np.flatnonzero(alone):
        assert len(written[1 - who[row]][row]) in (prompts[row], prompts[row] - 1), "prompt only, in one or more chunks"


@st.composite
def queries(draw):
    """Queries of one model, and a pass size that holds the scheduler's share of them."""
    lengths = np.array(draw(st.lists(st.integers(1, 30), min_size=1, max_size=12)))
    behind = np.array([draw(st.integers(0, length - 1)) for length in lengths])
    behind[np.array(draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))] = 0
    starts = 7 * np.arange(len(lengths))
    share = int((lengths - behind).sum())
    return np.arange(len(lengths)) + 3, starts, starts + lengths, starts + behind, share + draw(st.integers(0, 40))


@given(queries())
def test_passes_hold_every_query_once_and_what_was_just_allotted_together(case):
    rows, starts, ends, scheduled, max_tokens = case
    run = model_run(*case)
    found = sorted(zip(run.rows.tolist(), run.starts.tolist(), run.ends.tolist(), strict=True))
    assert found == list(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True))
    passes = run.split()
    for name in ("rows", "starts", "ends"):
        assert np.concatenate([getattr(one, name) for one in passes]).tolist() == getattr(run, name).tolist()
    allotted = set(rows[starts == scheduled].tolist())
    assert allotted <= set(passes[0].rows.tolist()), "what the scheduler allotted may read each other's blocks"
    for one, after in zip(passes, [*passes[1:], None], strict=True):
        assert one.lengths.sum() <= max_tokens or len(one.rows) == 1
        assert (np.diff(one.lengths) >= 0).all()
        if after is not None:
            assert one.lengths.sum() + min(after.lengths) > max_tokens, "no pass ends early"
    assert len(passes) == 1 or run.lengths.sum() > max_tokens


def test_a_pass_is_full_at_its_last_token_the_first_and_any_other():
    # the scheduler's own query of 10 or 30 tokens, then catch-up
    def passes(own, *catch_up):
        lengths = np.array([own, *catch_up])
        starts = 100 * np.arange(len(lengths))
        run = model_run(np.arange(len(lengths)), starts, starts + lengths, starts + (np.arange(len(lengths)) > 0), 30)
        return dict(zip(run.rows.tolist(), run.passes.tolist(), strict=True))

    assert passes(10, 20, 25) == {0: 0, 1: 0, 2: 1}
    assert passes(30, 10, 20) == {0: 0, 1: 1, 2: 1}


def test_a_model_may_lag_by_max_lag_and_no_token_more():
    def idle(lag, alone=False):
        one, yes = np.array([40]), np.array([True])
        held = np.array([one + 1 - lag, one])
        plan = plan_lazy(one, one + 1, yes, np.array([SENIOR]), held, np.array([alone]), 16, 99)
        return plan.runs[JUNIOR] is None

    assert idle(16) and not idle(17) and idle(17, alone=True)


def test_a_model_ahead_of_the_scheduler_is_an_error():
    with pytest.raises(RuntimeError, match="row 1 starts at token 5, but the models hold"):
        plan_lazy(
            np.array([9, 5]), np.array([10, 6]), np.array([True, True]), np.array([1, 1]),
            np.array([[9, 6], [9, 5]]), np.array([False, False]), 16, 48,
        )  # fmt: skip
