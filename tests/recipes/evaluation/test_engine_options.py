"""What the engines of a handoff are given, before any of them starts."""

import pytest

from recipes.evaluation.generate import DEFAULT_MEMORY_SHARE, Generator
from recipes.evaluation.settings import ModelSpec, read_settings

PARTNER = "partner.model=c/d"


def generator(*overrides, together="sentence_handoff", spec=None):
    settings = read_settings(["models=[a/b]", "benchmarks=[gsm8k]", *overrides])
    return Generator(spec or settings.models[0], settings, together)


def shares(of):
    return [of.engine_options(role).get("gpu_memory_utilization") for role in ("model", "partner")]


def test_two_engines_of_a_handoff_share_the_memory_that_one_may_take():
    """vLLM refuses an engine when less than its share is free: the shares of both must fit on one device together."""
    assert shares(generator(PARTNER)) == [pytest.approx(DEFAULT_MEMORY_SHARE / 2)] * 2
    chosen = generator(PARTNER, "engine.gpu_memory_utilization=0.8", "handoff.partner_memory=0.25")
    assert shares(chosen) == [pytest.approx(0.6), pytest.approx(0.2)]


def test_an_engine_that_is_alone_here_keeps_its_memory():
    assert generator(together=None).engine_options("model") == {}
    endpoint = "partner.model={endpoint: http://x, model: m, tokenizer: t}"
    alone = generator(endpoint, "partner.readings=[sentence_handoff]", "engine.gpu_memory_utilization=0.8")
    assert alone.engine_options("model") == {"gpu_memory_utilization": 0.8}
    served = ModelSpec("served", endpoints=("http://x",), served="m", tokenizer="t")
    assert "gpu_memory_utilization" not in generator(PARTNER, spec=served).engine_options("partner")


def test_the_store_of_a_handoff_knows_what_decides_its_responses():
    word = generator(PARTNER, together="word_handoff").handoff_settings()
    assert word == {"partner": "c/d", "by": "word", "prob_own": 0.5, "max_gap_tokens": 32}
    parts = generator(PARTNER, "handoff.separator=x").handoff_settings()
    assert parts == {"partner": "c/d", "starts": "model", "separator": "x", "max_rounds": 150}
    assert generator(together=None).handoff_settings() is None
