"""Metrics are shares that add up, and their keys never change."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.pasodoble.diversity import DiversityHistory
from recipes.pasodoble.rounds import Proposal, pass_rate_band, problems, round_metrics, score_round
from recipes.pasodoble.settings import RoundSettings


def played(correct):
    proposals = [Proposal(f"problem {i}", "the answer", (i,)) for i in range(len(correct))]
    verdicts = [None if c is None else [1.0] * c + [0.0] * (6 - c) for c in correct]
    return score_round(proposals, verdicts, DiversityHistory(), RoundSettings())


@pytest.mark.parametrize(
    "rate, band",
    [(0, "0"), (1 / 6, "to_0.2"), (0.2, "to_0.2"), (2 / 6, "to_0.4"), (0.5, "to_0.6"), (5 / 6, "below_1"), (1, "1")],
)
def test_bands(rate, band):
    assert pass_rate_band(rate) == band


def test_a_known_step():
    metrics = round_metrics([played([0, 3, 6, None]), played([0, 0, 0, 0])])
    assert metrics["game/rounds"] == 2 and metrics["game/skipped"] == 0.5
    assert metrics["game/skip/advantage"] == 0.5 and metrics["game/skip/pass_rate"] == 0
    assert metrics["game/ungraded"] == 1 / 8 and metrics["game/valid"] == 1
    assert metrics["game/pass_rate"] == pytest.approx(1.5 / 7)
    assert metrics["game/solver_questions"] == 0.5
    assert metrics["game/pass_rate_histogram/0"] == pytest.approx(5 / 7)


@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.integers(0, 6)), min_size=1, max_size=6).map(played), min_size=1, max_size=4
    )
)
def test_histogram_adds_up_and_entries_are_json(rounds):
    metrics = round_metrics(rounds)
    total = sum(value for key, value in metrics.items() if "histogram" in key)
    graded = any(rate is not None for r in rounds for rate in r.pass_rates)
    assert total == pytest.approx(1.0 if graded else 0.0)
    assert set(metrics) - {"game/diversity"} == set(round_metrics([played([0])])) - {"game/diversity"}
    entries = json.loads(json.dumps(problems(rounds, 3)))
    assert len(entries) == sum(len(r.proposals) for r in rounds)
