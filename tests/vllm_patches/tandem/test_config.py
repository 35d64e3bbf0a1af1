"""Faulty settings are refused with a sentence before anything starts."""

import json
import pickle
import shlex
from pathlib import Path

import pytest

import vllm_patches
from vllm_patches.tandem.boundaries import VocabularyMismatchError
from vllm_patches.tandem.config import (
    CONFIG_KEY,
    REASON_KEY,
    TandemConfig,
    check_models,
    check_request,
    engine_arguments,
    request_settings,
)
from vllm_patches.tandem.schedule import ScheduleParams


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "names no junior_model"),
        ([("junior_model", "j")], "expected a mapping"),
        (dict(junior_model=""), "junior_model is ''"),
        (dict(junior_model=3), "junior_model is 3"),
        (
            dict(junior_model="j", frozen_model="k"),
            "unknown tandem setting frozen_model; expected any of.*junior_model",
        ),
        (dict(junior_model="j", runner="v2"), "unknown tandem setting runner"),
        (dict(junior_model="j", mode="eager"), "mode is 'eager'; expected one of auto, lazy, lock_step"),
        (dict(junior_model="j", prob_senior=1.2), "prob_senior is 1.2"),
        (dict(junior_model="j", max_lag_tokens=0), "max_lag_tokens is 0"),
        (dict(junior_model="j", junior_dtype="float99"), "junior_dtype is 'float99'; expected one of auto, half"),
        (dict(junior_model="j", junior_load_format=None), "junior_load_format is None"),
        (dict(junior_model="j", junior_quantization=4), "junior_quantization is 4"),
        (dict(junior_model="j", junior_revision=5), "junior_revision is 5"),
        (dict(junior_model="j", junior_trust_remote_code="false"), "junior_trust_remote_code is 'false'"),
        (dict(junior_model="j", junior_device="cuda:1"), "junior_device is 'cuda:1'"),
        (dict(junior_model="j", word_align="before", mode="lazy"), "lock_step"),
        (dict(junior_model="j", word_align="before", mode="speculative"), "lock_step"),
        (dict(junior_model="j", num_draft_tokens=0), "num_draft_tokens is 0"),
        (dict(junior_model="j", adapt_draft_tokens="no"), "adapt_draft_tokens is 'no'"),
    ],
)
def test_faulty_engine_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        engine_arguments(settings)


def test_engine_arguments_are_plain_data_that_survives_a_command_line():
    settings = dict(junior_model="j", prob_senior=0.25, boundary_token_ids=[3, 4])
    arguments = engine_arguments(settings)
    assert json.loads(json.dumps(arguments)) == arguments
    assert arguments["additional_config"][CONFIG_KEY] == settings
    assert arguments["async_scheduling"] is False
    assert TandemConfig.from_mapping(arguments["additional_config"][CONFIG_KEY]).prob_senior == 0.25


def test_in_the_speculative_mode_the_junior_is_the_draft_model():
    settings = dict(
        junior_model="j", mode="speculative", num_draft_tokens=6, junior_revision="r", junior_quantization="q"
    )
    arguments = engine_arguments(settings)
    assert json.loads(json.dumps(arguments)) == arguments
    assert arguments["speculative_config"] == {
        "method": "draft_model",
        "model": "j",
        "num_speculative_tokens": 6,
        "revision": "r",
        "quantization": "q",
    }
    assert "speculative_config" not in engine_arguments(dict(junior_model="j"))


def test_the_readmes_server_command_gives_these_arguments_as_flags():
    readme = Path(vllm_patches.__file__).with_name("README.md").read_text()
    command = shlex.split(readme.split("## Serving", 1)[1].split("```bash\n", 1)[1].split("```", 1)[0])
    flags = dict(zip(command, [*command[1:], ""], strict=True))
    settings = json.loads(flags["--additional-config"])[CONFIG_KEY]
    arguments = engine_arguments(settings)
    del arguments["additional_config"][REASON_KEY]  # for the log alone
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        if value is False:
            assert "--no-" + flag.removeprefix("--") in flags
        else:
            assert (json.loads if name == "additional_config" else str)(flags[flag]) == value


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ([], "expected a mapping"),
        ('{"\\ud800": 1}', r"unknown key in extra_args\['tandem'\] \\ud800; expected"),
        (dict(p=0.5), r"unknown key in extra_args\['tandem'\] p; expected any of selection_strategy"),
        (dict(prob_senior=2), "prob_senior is 2"),
        (dict(resume_len=1.0), "resume_len is 1.0"),
        (dict(resume_len=True), "resume_len is True"),
        (dict(request="a"), "request is 'a'"),
        ("request=7", "not JSON"),
        ("[7]", "expected a mapping"),
    ],
)
def test_faulty_request_settings(extra, says):
    with pytest.raises(ValueError, match=says):
        check_request(extra)


def test_a_request_inherits_what_it_does_not_set():
    config = TandemConfig("j", prob_senior=0.25, max_gap_tokens=9, seed=4)
    settings = request_settings(config, dict(request=7, prob_senior=0.75), [1, 2, 3])
    assert settings.params == ScheduleParams("word", 0.75, 9, seed=4, request=7)
    assert request_settings(config, dict(request=7), [1], sampling_seed=3).params.request == 7
    assert request_settings(config, '{"request": 7}', [1]).params.request == 7


def test_without_a_name_of_its_own_a_request_is_known_by_its_prompt():
    config = TandemConfig("j")
    one = request_settings(config, None, [1, 2, 3]).params.request
    assert one == request_settings(config, {}, (1, 2, 3)).params.request
    assert one != request_settings(config, None, [1, 2, 4]).params.request
    assert one != request_settings(config, None, [1, 2, 3], sampling_seed=0).params.request
    assert one == request_settings(config, dict(resume_len=2), [1, 2, 3, 8, 9]).params.request
    with pytest.raises(ValueError, match="resume_len is 4, more than the 3 tokens"):
        request_settings(config, dict(resume_len=4), [1, 2, 3])


def test_solo_validation_works_under_every_engine_default():
    config = TandemConfig("j", mode="lock_step", word_align="before")
    assert request_settings(config, dict(selection_strategy="senior"), [1]).params.word_align == "after"


def test_both_models_are_read_before_the_engine_starts(models, tmp_path):
    senior, junior = str(models["senior"]), str(models["junior"])
    sets = check_models(TandemConfig(junior), senior)
    assert 3 in sets.word and 7 in sets.sentence and 1 not in sets.word | sets.sentence
    with pytest.raises(ValueError, match="no model lies there"):
        check_models(TandemConfig(str(tmp_path / "nowhere")), senior)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        check_models(TandemConfig(str(tmp_path)), senior)
    with pytest.raises(VocabularyMismatchError, match="need.* one tokenizer"):
        check_models(TandemConfig(str(models["stranger"])), senior)


def test_models_that_a_mode_does_not_take_are_refused_before_the_engine_starts(models, tmp_path):
    from transformers import AutoConfig, AutoTokenizer, MistralConfig

    senior = str(models["senior"])
    MistralConfig(sliding_window=32).save_pretrained(tmp_path / "windows")
    shorter = AutoConfig.from_pretrained(models["junior"])
    shorter.vocab_size = 448
    shorter.save_pretrained(tmp_path / "shorter")
    for name in ("windows", "shorter"):
        AutoTokenizer.from_pretrained(senior).save_pretrained(tmp_path / name)
    for mode in ("lazy", "speculative"):
        with pytest.raises(ValueError, match=f"mode is '{mode}'.*attention has windows.*set mode to 'lock_step'"):
            check_models(TandemConfig(str(tmp_path / "windows"), mode=mode), senior)
    check_models(TandemConfig(str(tmp_path / "windows"), mode="lock_step"), senior)
    with pytest.raises(ValueError, match="mode is 'speculative', and .* 448 and 512 rows.*: set mode to 'lazy'"):
        check_models(TandemConfig(str(tmp_path / "shorter"), mode="speculative"), senior)
    check_models(TandemConfig(str(tmp_path / "shorter"), mode="lazy"), senior)


def test_boundaries_by_hand_replace_those_of_the_configured_strategy(models):
    senior = str(models["senior"])
    sets = check_models(TandemConfig(senior, boundary_token_ids=[5]), senior)
    assert sets.word == {5} and 7 in sets.sentence
    with pytest.raises(ValueError, match="reads none"):
        check_models(TandemConfig(senior, selection_strategy="chunk", boundary_token_ids=[5]), senior)
    with pytest.raises(ValueError, match="between 0 and 511"):
        check_models(TandemConfig(senior, boundary_token_ids=[512]), senior)


def test_settings_are_picklable_values():
    config = TandemConfig("j", prob_senior=0.25)
    assert pickle.loads(pickle.dumps(config)) == config
