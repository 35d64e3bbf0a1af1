"""One sentence for a value that a recipe cannot run with."""

import pytest
from omegaconf import OmegaConf

from recipes.common.guards import require, require_off
from recipes.errors import ConfigError

CONFIG = OmegaConf.create({"a": {"mode": "sync", "on": True, "off": False, "none": None, "size": 4, "zero": 0}})


def test_what_is_allowed_passes():
    require(CONFIG, "a.mode", "async", "sync", why="")
    require(CONFIG, "a.none", None, why="")
    require(CONFIG, "a.not_there", None, why="")
    require_off(CONFIG, "a.off", "a.none", "a.zero", "a.not_there", "not.there", why="")


@pytest.mark.parametrize(
    ("refuse", "sentence"),
    [
        (lambda: require(CONFIG, "a.mode", "x", "y", why="so"), "so: set a.mode=x or y, found sync"),
        (lambda: require(CONFIG, "a.on", False, why="so"), "so: set a.on=false, found true"),
        (lambda: require(CONFIG, "a.not_there", True, why="so"), "so: set a.not_there=true, found null"),
        (lambda: require_off(CONFIG, "a.off", "a.on", why="so"), "so: set a.on=false, found true"),
        (lambda: require_off(CONFIG, "a.size", why="so"), "so: set a.size=null, found 4"),
    ],
)
def test_a_refusal_names_reason_key_and_value(refuse, sentence):
    with pytest.raises(ConfigError) as refusal:
        refuse()
    assert str(refusal.value) == sentence
