"""Defaults are the original's, and a misspelt key never passes."""

import pytest

from recipes.pasodoble.settings import KnowledgeSettings, OfflineSettings, RoundSettings


def test_defaults_are_the_published_ones():
    r, o, k = RoundSettings(), OfflineSettings(), KnowledgeSettings()
    assert (r.tau_low, r.tau_high, r.tau_div, r.w, r.history_size, r.history_threshold) == (
        0.2,
        1.0,
        0.3,
        0.2,
        100,
        0.8,
    )
    assert (o.proposer_updates, o.solver_updates, o.questions_per_update, o.max_solver_tries) == (10, 5, 6, 20)
    assert (k.path, k.text_column, k.max_tokens, k.seed) == ("YouAreSpecialToMe/filtered_MegaMath", "text", 1024, 42)


@pytest.mark.parametrize("cls", [RoundSettings, OfflineSettings, KnowledgeSettings])
def test_unknown_keys_are_refused(cls):
    assert cls.from_config(None) == cls()
    with pytest.raises(ValueError, match=r"unknown key \['tau'\] in pasodoble\."):
        cls.from_config({"tau": 1})


@pytest.mark.parametrize(
    "kwargs",
    [{"tau_low": 1.0}, {"tau_low": -0.1}, {"history_admit": "none"}, {"leak_check": "off"}, {"filter_by": "all"}],
)
def test_bad_values_are_refused(kwargs):
    with pytest.raises(ValueError):
        RoundSettings(**kwargs)
