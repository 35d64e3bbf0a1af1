"""What the engines of a handoff are given, before any of them starts."""

import pytest

from recipes.evaluation.engines import DEFAULT_MEMORY_SHARE
from recipes.evaluation.generation import Generator
from recipes.evaluation.settings import ModelSpec, read_settings


def generator(*overrides, model="a/b"):
    settings = read_settings([f"models=[{model}]", "benchmarks=[gsm8k]", *overrides])
    return Generator(settings.models[0], settings)


def shares(found):
    return [found.engine_options(role).get("gpu_memory_utilization") for role in ("model", "partner")]


def test_two_engines_of_a_handoff_share_the_memory_that_one_may_take():
    """vLLM refuses an engine when less than its share is free: the shares of both must fit on one device together."""
    assert shares(generator("handoff.partner=c/d")) == [pytest.approx(DEFAULT_MEMORY_SHARE / 2)] * 2
    given = shares(generator("handoff.partner=c/d", "engine.gpu_memory_utilization=0.8", "handoff.partner_memory=0.25"))
    assert given == [pytest.approx(0.6), pytest.approx(0.2)]


def test_an_engine_that_is_alone_here_keeps_its_memory():
    assert generator().engine_options("model") == {}
    endpoint = "{endpoint: http://x, model: m, tokenizer: t}"
    alone = generator(f"handoff.partner={endpoint}", "engine.gpu_memory_utilization=0.8")
    assert alone.engine_options("model") == {"gpu_memory_utilization": 0.8}


def test_the_store_of_a_handoff_knows_what_decides_its_responses():
    word = generator("handoff.partner=c/d", "handoff.by=word")._handoff_settings()
    assert word == {"partner": "c/d", "by": "word", "prob_own": 0.5, "max_gap_tokens": 32}
    parts = generator("handoff.partner=c/d", "handoff.separator=x")._handoff_settings()
    assert parts == {"partner": "c/d", "starts": "model", "separator": "x", "max_rounds": 150}
    assert generator()._handoff_settings() is None


def test_the_partner_of_an_endpoint_keeps_its_memory():
    settings = read_settings(["models=[a/b]", "benchmarks=[gsm8k]", "handoff.partner=c/d"])
    served = ModelSpec("served", endpoints=("http://x",), served="m", tokenizer="t")
    assert "gpu_memory_utilization" not in Generator(served, settings).engine_options("partner")
