"""What the drafts of several engines were worth together."""

import dataclasses

import pytest

from recipes.tandem.trainer import drafting_metrics
from vllm_patches.tandem.speculative.round import Outcome, SpeculativeStats


def engine(cost_ratio=0.5, **counts):
    stats = SpeculativeStats()
    stats.add(Outcome(**counts), cost_ratio)
    return dataclasses.asdict(stats)


def test_two_engines_by_hand():
    one = engine(rounds=10, drafted=40, emitted=30, reached=35, tested=20, passed=15, silent=1)
    two = engine(rounds=30, drafted=60, emitted=50, reached=45, tested=20, passed=17)
    assert drafting_metrics([one, two]) == pytest.approx(
        {
            "tandem/draft_acceptance": 32 / 40,
            "tandem/tokens_per_round": 80 / 40,
            "tandem/drafts_per_round": 100 / 40,
            "tandem/cost_per_token": (40 + 0.5 * 100) / 80,
        }
    )


def test_without_drafts_there_is_nothing_to_report():
    assert drafting_metrics([]) == {}
    assert drafting_metrics([dict(steps=3, forwards=[2, 3], tokens=[5, 6])]) == {}, "the other modes' counts"
    assert drafting_metrics([dataclasses.asdict(SpeculativeStats())]) == {}, "an engine that had no work"
