"""A value out of range or a misspelt key never passes."""

import pytest

from recipes.errors import ConfigError
from recipes.pasodoble.settings import GameSettings


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ({"round": {"tau": 1}}, "round.tau"),
        ({"prompts": {"solver_sytem": "x"}}, "prompts.solver_sytem"),
        ({"round": {"reward": "r_zero"}}, "round.reward"),
        ({"round": {"tau_low": 1.0}}, "round.tau_low"),
        ({"round": {"tau_low": -0.1}}, "round.tau_low"),
        ({"round": {"leak_check": "off"}}, "round.leak_check"),
        ({"offline": {"questions_per_update": 0}}, "offline.questions_per_update"),
        ({"offline": {"solver_updates": 3, "max_solver_tries": 2}}, "offline.max_solver_tries"),
        ({"layout": "both"}, "layout"),
        ({"knowledge": {"path": None}}, "knowledge.path"),
        ({"train_proposer": False, "train_solver": False}, "train_solver"),
    ],
)
def test_bad_blocks_are_refused_with_the_key(block, key):
    with pytest.raises(ConfigError) as refusal:
        GameSettings.from_config(block)
    assert refusal.value.key == f"pasodoble.{key}"


def test_an_empty_block_gives_the_defaults():
    assert GameSettings.from_config(None) == GameSettings()
