"""Sampling presets: from the configuration, the model's generation config, and the budget of a benchmark."""

import json

import pytest

from recipes.core.sampling import Sampling
from recipes.errors import ConfigError
from recipes.evaluation.generate import Generator
from recipes.evaluation.settings import THINKING_TOKENS, read_settings, recommended

QWEN3 = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2]}


def model_folder(tmp_path, generation_config):
    """A folder that looks like a model, with the generation config of one."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return folder


def generator(folder, *overrides):
    settings = read_settings([f"models=[{folder}]", "benchmarks=[aime25,gsm8k]", *overrides])
    return Generator(settings.models[0], settings)


def test_without_a_preset_decoding_is_greedy(tmp_path):
    assert generator(model_folder(tmp_path, QWEN3)).sampling("aime25") == Sampling(temperature=0.0, max_tokens=3072)


def test_the_model_recommends_its_sampling_and_gets_the_limit_of_thinking_models(tmp_path):
    found = generator(model_folder(tmp_path, QWEN3), "sampling.preset=model", "sampling.n=4").sampling("aime25")
    assert found == Sampling(n=4, temperature=0.6, top_p=0.95, top_k=20, max_tokens=THINKING_TOKENS)


def test_what_is_set_by_hand_wins_and_budgets_are_for_their_benchmark(tmp_path):
    overrides = ["sampling.preset=model", "sampling.temperature=1.0", "sampling.budgets={aime25: 38912}"]
    found = generator(model_folder(tmp_path, QWEN3 | {"max_new_tokens": 2048}), *overrides)
    assert found.sampling("aime25").max_tokens == 38912
    assert found.sampling("gsm8k").max_tokens == 2048
    assert found.sampling("gsm8k").temperature == 1.0 and found.sampling("gsm8k").top_k == 20


@pytest.mark.parametrize("config", [{}, {"eos_token_id": 1}, {"do_sample": False, "temperature": 0.7}])
def test_a_model_that_recommends_no_sampling_is_greedy(config, tmp_path):
    assert recommended(config)["temperature"] == 0.0
    folder = model_folder(tmp_path, config)
    with pytest.raises(ConfigError) as refused:
        generator(folder, "sampling.preset=model", "sampling.n=4").sampling("gsm8k")
    assert refused.value.key == "sampling"


def test_a_model_without_a_generation_config_is_refused(tmp_path):
    with pytest.raises(ConfigError) as refused:
        generator(model_folder(tmp_path, None), "sampling.preset=model")
    assert refused.value.key == "sampling.preset"


def test_a_published_protocol_does_not_follow_the_preset(tmp_path):
    found = generator(model_folder(tmp_path, QWEN3), "protocol=published/tandem", "sampling.preset=model")
    assert (found.sampling("gsm8k").temperature, found.sampling("gsm8k").max_tokens) == (0.7, 3000)
