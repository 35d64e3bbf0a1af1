"""Defaults are the original's, and a misspelt key never passes."""

import pytest

from recipes.errors import ConfigError
from recipes.pasodoble.settings import GameSettings, KnowledgeSettings, OfflineSettings, RoundSettings


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


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"tau": 1}, "unknown key pasodoble.tau"),
        ({"round": {"tau": 1}}, "unknown key pasodoble.round.tau"),
        ({"offline": {"solver_update": 1}}, "pasodoble.offline.solver_update; did you mean solver_updates"),
        ({"knowledge": {"file": "x"}}, "unknown key pasodoble.knowledge.file"),
        ({"prompts": {"solver_sytem": "x"}}, "pasodoble.prompts.solver_sytem; did you mean solver_system"),
        ({"round": {"tau_low": 1.0}}, "need 0 <= tau_low < tau_high"),
        ({"round": {"tau_low": -0.1}}, "pasodoble.round.tau_low must be greater than or equal to 0"),
        ({"round": {"history_admit": "none"}}, "must be 'parsed', 'all' or 'valid'"),
        ({"round": {"leak_check": "off"}}, "pasodoble.round.leak_check"),
        ({"round": {"filter_by": "all"}}, "pasodoble.round.filter_by"),
        ({"offline": {"proposer_updates": -1}}, "pasodoble.offline.proposer_updates"),
        ({"offline": {"questions_per_update": 0}}, "pasodoble.offline.questions_per_update"),
        ({"offline": {"solver_updates": 3, "max_solver_tries": 2}}, "max_solver_tries must allow at least the 3"),
        ({"knowledge": {"max_tokens": 0}}, "pasodoble.knowledge.max_tokens"),
        ({"layout": "both"}, "pasodoble.layout must be 'colocate' or 'separate'"),
        ({"rounds_per_step": 0}, "pasodoble.rounds_per_step"),
        ({"max_ungraded_share": 1.5}, "pasodoble.max_ungraded_share"),
        ({"train_proposer": False, "train_solver": False}, "nothing would be trained"),
    ],
)
def test_bad_blocks_are_refused_with_the_key(block, sentence):
    with pytest.raises(ConfigError, match=sentence):
        GameSettings.from_config(block)


def test_an_empty_block_gives_the_defaults():
    assert GameSettings.from_config(None) == GameSettings()
