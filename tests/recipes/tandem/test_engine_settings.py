"""Published names beside ours, and what becomes of `tandem_config` before vLLM sees the engine arguments."""

from types import SimpleNamespace

import pytest

from recipes.errors import ConfigError
from recipes.tandem.settings import (
    ALIASES,
    FOLLOWED,
    KEY,
    TandemSettings,
    canonical_settings,
    check_followed,
    junior_weight,
    replace_section,
    tandem_config,
)
from vllm_patches.tandem.config import REASON_KEY

VALUES = {
    "frozen_model": "/models/junior",
    "frozen_model_revision": "main",
    "frozen_dtype": "float32",
    "frozen_quantization": "fp8",
    "prob_primary": 0.25,
    "boundary_token_ids_path": "ids.json",
    "frozen_gpu_devices": "cuda:1",
}


@pytest.mark.parametrize("name", ALIASES)
def test_a_published_name_wins_over_the_yamls_default_with_a_notice(name):
    ours = ALIASES[name]
    settings, notices = canonical_settings({"junior_model": "m", ours: "default", name: VALUES[name]})
    assert settings[ours] == VALUES[name] and name not in settings
    assert notices == [f"tandem_config.{name} is read as {ours}={VALUES[name]!r}"]


def test_our_names_need_no_notice_and_none_means_default():
    section = {"junior_model": "m", "prob_senior": 0.5, "junior_dtype": None, "frozen_dtype": None}
    assert canonical_settings(section) == ({"junior_model": "m", "prob_senior": 0.5}, [])


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_the_junior_follows_is_no_engine_setting_and_is_said(name):
    settings, notices = canonical_settings({"junior_model": "m", name: 1})
    assert settings == {"junior_model": "m"}
    assert notices == [f"tandem_config.{name} has no counterpart: {FOLLOWED[name]}"]


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("frozen_tensor_parallel_size", 2, True),
        ("frozen_tensor_parallel_size", 1, False),
        ("frozen_tensor_parallel_size", "2", False),
        ("frozen_gpu_memory_utilization", 0.9, True),
        ("frozen_gpu_memory_utilization", 1.5, False),
        ("frozen_enforce_eager", True, True),
        ("frozen_enforce_eager", False, False),
        ("frozen_max_model_len", 97, True),
        ("frozen_max_model_len", 96, False),
        ("frozen_max_model_len", None, True),
    ],
)
def test_what_the_junior_follows_may_say_the_same(name, value, taken):
    rollout = SimpleNamespace(
        tensor_model_parallel_size=2, enforce_eager=True, max_model_len=97, prompt_length=64, response_length=32
    )
    if taken:
        check_followed({name: value}, rollout)
    else:
        with pytest.raises(ConfigError) as refusal:
            check_followed({name: value}, rollout)
        assert refusal.value.key == f"{KEY}.{name}"


def test_a_context_that_is_left_open_is_as_long_as_prompt_and_response():
    rollout = SimpleNamespace(
        tensor_model_parallel_size=1, enforce_eager=False, max_model_len=None, prompt_length=64, response_length=32
    )
    check_followed({"frozen_max_model_len": 96}, rollout)
    with pytest.raises(ConfigError):
        check_followed({"frozen_max_model_len": 95}, rollout)


@pytest.mark.parametrize(
    ("weight", "taken"),
    [(0, True), (0.15, True), (1, True), (1.01, False), (-0.1, False), (True, False), ("0", False)],
)
def test_the_published_junior_weight_is_a_share_and_wins(weight, taken):
    section = {"junior_model": "m", "tandem_jr_tkn_weight": weight}
    if taken:
        settings, notices = canonical_settings(section)
        assert settings == {"junior_model": "m"} and "junior_token_loss_weight" in notices[0]
        assert junior_weight(TandemSettings(junior_token_loss_weight=0.5), section) == weight
    else:
        with pytest.raises(ConfigError) as refusal:
            canonical_settings(section)
        assert refusal.value.key == f"{KEY}.tandem_jr_tkn_weight"


def test_without_the_published_name_ours_holds():
    for section in ({}, {"tandem_jr_tkn_weight": None}):
        assert junior_weight(TandemSettings(junior_token_loss_weight=0.5), section) == 0.5


def test_enabled_is_what_the_rollouts_name_says():
    assert canonical_settings({"junior_model": "m", "enabled": True})[0] == {"junior_model": "m"}
    with pytest.raises(ConfigError) as refusal:
        canonical_settings({"junior_model": "m", "enabled": False})
    assert refusal.value.key == f"{KEY}.enabled"


@pytest.mark.parametrize(
    "section",
    [{}, {"junior_model": ""}, {"junior_model": "m", "prob_sr": 0.5}, {"junior_model": "m", "prob_primary": 1.01}, "m"],
)
def test_faulty_sections_are_refused(section):
    with pytest.raises(ConfigError) as refusal:
        tandem_config(section)
    assert refusal.value.key == KEY


def test_the_section_becomes_engine_arguments():
    engine_kwargs = {"kv_cache_memory_bytes": 5, "tandem_config": {"frozen_model": "m", "prob_primary": 0.3}}
    replace_section(engine_kwargs)
    assert "tandem_config" not in engine_kwargs and engine_kwargs["kv_cache_memory_bytes"] == 5
    assert engine_kwargs["additional_config"]["tandem"] == {"junior_model": "m", "prob_senior": 0.3}
    assert engine_kwargs["worker_cls"] == "vllm_patches.tandem.worker.TandemWorker"
    assert engine_kwargs["async_scheduling"] is False


@pytest.mark.parametrize(
    ("max_num_seqs", "lora", "mode"),
    [(8, False, "speculative"), (9, False, "lazy"), (8, True, "lock_step")],
)
def test_auto_depends_on_models_adapter_and_batch(models, max_num_seqs, lora, mode):
    engine_kwargs = {"tandem_config": {"junior_model": models, "mode": "auto"}}
    says = replace_section(engine_kwargs, models, lora, max_num_seqs)
    assert says == engine_kwargs["additional_config"][REASON_KEY] and says.startswith(f"{mode} (")
    assert ("speculative_config" in engine_kwargs) == (mode == "speculative")


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A model's path; no weights are read to compare sizes."""
    from transformers import Qwen3Config

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    Qwen3Config(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=1).save_pretrained(tmp_path)
    return str(tmp_path)


def test_the_speculative_mode_makes_the_junior_the_draft_model():
    engine_kwargs = {"tandem_config": {"frozen_model": "m", "mode": "speculative", "num_draft_tokens": 3}}
    replace_section(engine_kwargs)
    drafts = {"method": "draft_model", "model": "m", "num_speculative_tokens": 3}
    assert engine_kwargs["speculative_config"] == drafts
    assert engine_kwargs["additional_config"]["tandem"]["mode"] == "speculative"


def test_additional_config_of_others_stays():
    engine_kwargs = {"additional_config": {"other": 1}, "tandem_config": {"junior_model": "m"}}
    replace_section(engine_kwargs)
    assert engine_kwargs["additional_config"]["other"] == 1
    assert engine_kwargs["additional_config"]["tandem"] == {"junior_model": "m"}


@pytest.mark.parametrize(
    "by_hand",
    [
        {"async_scheduling": True},
        {"scheduler_cls": "mine"},
        {"additional_config": {"tandem": {"junior_model": "x"}}},
    ],
)
def test_arguments_that_tandem_decides_are_refused(by_hand):
    with pytest.raises(ConfigError) as refusal:
        replace_section({"tandem_config": {"junior_model": "m"}, **by_hand})
    assert refusal.value.key == f"actor_rollout_ref.rollout.engine_kwargs.vllm.{next(iter(by_hand))}"


def test_a_missing_section_is_refused():
    with pytest.raises(ConfigError) as refusal:
        replace_section({})
    assert refusal.value.key == f"{KEY}.junior_model"
