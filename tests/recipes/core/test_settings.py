"""What the reader takes, and the sentence it gives for what it does not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic import Field

from recipes.core.settings import Count, Finite, Positive, PositiveShare, Share, read
from recipes.errors import ConfigError


@dataclass(frozen=True)
class Sampling:
    temperature: Positive = 1.0
    top_p: PositiveShare = 1.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class GameSettings:
    name: str
    eta: Positive = 1.0
    bounds: tuple[float, float] = (0.2, 0.8)
    scope: Literal["batch", "prompt"] = "batch"
    rounds: Count = 1
    skip: Share = 0.1
    offset: Finite = 0.0
    size: Annotated[int, Field(ge=2, le=8)] = 2
    folder: Path | None = None
    keep: bool = True
    sources: Mapping[str, list[str]] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    judge: Sampling | None = None

    def __post_init__(self):
        if self.bounds[0] > self.bounds[1]:
            raise ValueError(f"bounds must ascend, found {self.bounds}")
        if self.scope == "prompt" and self.rounds > 5:
            raise ConfigError("game.rounds above 5 needs game.scope=batch")


def refused(block, **more):
    with pytest.raises(ConfigError) as caught:
        read(GameSettings, block, "game", **more)
    return str(caught.value)


def test_every_kind_of_value_arrives_in_its_type():
    block = {
        "name": "a",
        "eta": 2,
        "bounds": [0, 1],
        "scope": "prompt",
        "folder": "a/b",
        "sources": {"AIME": ["aime24"]},
        "sampling": {"stop": ["\n"], "temperature": 0.5},
        "judge": {"top_p": 0.5},
    }
    expected = GameSettings(
        "a",
        2.0,
        (0.0, 1.0),
        "prompt",
        folder=Path("a/b"),
        sources={"AIME": ["aime24"]},
        sampling=Sampling(0.5, stop=("\n",)),
        judge=Sampling(top_p=0.5),
    )
    for given_block in (block, OmegaConf.create(block), block | {"folder": Path("a/b"), "bounds": (0, 1)}):
        found = read(GameSettings, given_block, "game")
        assert found == expected
        assert type(found.eta) is float and type(found.bounds) is tuple


def test_an_absent_block_gives_the_defaults_and_names_what_has_none():
    assert read(Sampling, None, "sampling") == Sampling()
    assert refused(None) == "game.name is not set"


def test_interpolations_are_resolved():
    config = OmegaConf.create({"n": 3, "game": {"name": "a", "rounds": "${n}"}})
    assert read(GameSettings, config.game, "game").rounds == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"eta": 0}, "game.eta must be greater than 0, found 0"),
        ({"eta": True}, "game.eta must be a valid number, found True"),
        ({"eta": "1"}, "game.eta must be a valid number, found '1'"),
        ({"eta": float("inf")}, "game.eta must be a finite number, found inf"),
        ({"offset": float("nan")}, "game.offset must be a finite number, found nan"),
        ({"rounds": 1.0}, "game.rounds must be a valid integer, found 1.0"),
        ({"rounds": 0}, "game.rounds must be greater than or equal to 1, found 0"),
        ({"rounds": None}, "game.rounds must be a valid integer, found None"),
        ({"skip": 1.01}, "game.skip must be less than or equal to 1, found 1.01"),
        ({"skip": float("nan")}, "game.skip must be"),
        ({"size": 9}, "game.size must be less than or equal to 8, found 9"),
        ({"keep": 1}, "game.keep must be a valid boolean, found 1"),
        ({"keep": "false"}, "game.keep must be a valid boolean, found 'false'"),
        ({"scope": "step"}, "game.scope must be 'batch' or 'prompt', found 'step'"),
        ({"bounds": [1]}, "game.bounds.1 is not set"),
        ({"bounds": 1}, "game.bounds must be a valid array, found 1"),
        ({"bounds": [0.9, 0.1]}, "game: bounds must ascend, found (0.9, 0.1)"),
        ({"scope": "prompt", "rounds": 6}, "game.rounds above 5 needs game.scope=batch"),
        ({"sources": {"a": "b"}}, "game.sources.a must be a valid array, found 'b'"),
        ({"sampling": {"top_p": 0}}, "game.sampling.top_p must be greater than 0, found 0"),
        ({"sampling": 3}, "game.sampling must be an object, found 3"),
        ({"judge": {"temperature": -1}}, "game.judge.temperature must be greater than 0, found -1"),
        ({"name": object()}, "game holds a value that no config can"),
    ],
)
def test_the_sentence_names_the_key_the_rule_and_the_value(change, sentence):
    assert refused({"name": "a"} | change).startswith(sentence)


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"naem": "a"}, "unknown key game.naem; did you mean name? (known: name, eta, "),
        ({"zzz": 1}, "unknown key game.zzz (known: name, "),
        ({"name": "a", "sampling": {"topp": 1}}, "unknown key game.sampling.topp; did you mean top_p?"),
        ({"name": "a", "judge": {"topp": 1}}, "unknown key game.judge.topp; did you mean top_p?"),
        ({3: 1}, "unknown key game.3"),
    ],
)
def test_unknown_keys_get_the_nearest_known_one_at_every_level(block, sentence):
    assert refused(block).startswith(sentence)


@pytest.mark.parametrize("block", [3, "a", [1], True])
def test_what_is_no_block(block):
    assert refused(block) == f"game must be a block of settings, found {block!r}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from(["name", "eta", "bounds", "scope", "sampling", "sources", "size"]), JSON))
def test_whatever_a_yaml_file_holds_is_read_or_refused_with_a_sentence(block):
    try:
        found = read(GameSettings, block, "game")
    except ConfigError as error:
        assert str(error).startswith(("game", "unknown key game"))
    else:
        assert isinstance(found.name, str) and 0 < found.eta < float("inf") and 2 <= found.size <= 8
