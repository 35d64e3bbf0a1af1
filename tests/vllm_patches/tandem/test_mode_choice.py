"""`mode: auto` is decided by device, adapter, word alignment, size and batch, and says why."""

import re

import pytest

from vllm_patches.tandem.config import CONFIG_KEY, REASON_KEY, TandemConfig, engine_arguments
from vllm_patches.tandem.mode_choice import choose_mode, draft_problem, drafts_for, has_windows, parameter_share


@pytest.mark.parametrize(
    ("settings", "lora", "on_gpu", "batch", "mode", "says"),
    [
        (dict(mode="lock_step"), False, True, None, "lock_step", "as configured"),
        (dict(mode="speculative"), False, False, 999, "speculative", "as configured"),
        (dict(word_align="before"), False, True, None, "lock_step", "word_align='before'"),
        (dict(), True, True, None, "lock_step", "LoRA is on"),
        (dict(), False, True, 16, "lazy", "drafts were not"),
        (dict(), False, False, 17, "lazy", "up to 17 requests run at a time"),
        (dict(), False, False, None, "lazy", "sizes unknown"),
    ],
)
def test_without_the_senior_at_hand(settings, lora, on_gpu, batch, mode, says):
    config = TandemConfig("j", **settings)
    chosen, reason = choose_mode(config.mode, config.word_align, lora, on_gpu, None, batch)
    assert chosen == mode and re.search(says, reason)
    arguments = engine_arguments(dict(junior_model="j") | settings, None, lora, on_gpu, batch)
    assert ("speculative_config" in arguments) == (mode == "speculative")
    assert arguments["additional_config"][REASON_KEY] == f"{mode} ({reason})"
    if mode == "speculative":
        assert arguments["additional_config"][CONFIG_KEY]["mode"] == "speculative"


def test_on_a_cpu_sizes_and_the_batch_decide(models):
    assert parameter_share(str(models["near"]), str(models["senior"])) == 1
    assert 0.1 < parameter_share(str(models["one_head"]), str(models["senior"])) < 0.5
    assert parameter_share("no/such-model", str(models["senior"])) is None
    for senior, junior, batch, mode in (
        ("senior", "near", None, "speculative"),
        ("senior", "near", 1, "lazy"),
        ("senior", "near", 2, "speculative"),
        ("senior", "near", 8, "speculative"),
        ("senior", "near", 9, "lazy"),
        ("senior", "one_head", 16, "speculative"),
        ("senior", "one_head", 17, "lazy"),
        ("senior", "one_head", None, "speculative"),
        ("senior", "one_head", 1, "speculative"),
        ("one_head", "senior", None, "lazy"),
    ):
        arguments = engine_arguments(
            dict(junior_model=str(models[junior])), str(models[senior]), on_gpu=False, batch=batch
        )
        assert ("speculative_config" in arguments) == (mode == "speculative")
        assert re.match(rf"{mode} \(.*\d", arguments["additional_config"][REASON_KEY]), "a figure decided"


def test_a_smaller_junior_drafts_more(models):
    """What the formula of the adaptive length gives at nine of ten drafts accepted; 4 and 8 measured best."""
    assert drafts_for(None, 0.5) == drafts_for(1.0, 0.5) == 4
    assert drafts_for(0.25, 0.5) == 8
    lengths = [drafts_for(share, 0.5) for share in (0.05, 0.25, 0.5, 1.0, 2.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert drafts_for(1.0, 1.0) < drafts_for(1.0, 0.0), "where the senior writes all, each draft may fail"
    junior, senior = str(models["one_head"]), str(models["senior"])
    number = drafts_for(parameter_share(junior, senior), 0.5)
    assert number > 4
    for given, expected in ((dict(), number), (dict(num_draft_tokens=3), 3)):
        settings = dict(junior_model=junior, mode="speculative") | given
        arguments = engine_arguments(settings, senior, on_gpu=False)
        assert arguments["speculative_config"]["num_speculative_tokens"] == expected
        assert arguments["additional_config"][CONFIG_KEY]["num_draft_tokens"] == expected


def test_a_model_that_is_no_decoder_has_no_share_and_is_left_to_the_engine_to_refuse(tmp_path):
    from transformers import T5Config

    T5Config(vocab_size=100, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2).save_pretrained(tmp_path)
    assert parameter_share(str(tmp_path), str(tmp_path)) is None


def test_auto_avoids_what_an_engine_would_refuse(models, tmp_path):
    from transformers import AutoConfig, MistralConfig

    senior, junior = str(models["senior"]), str(models["near"])
    for number, changes in enumerate((dict(vocab_size=448), dict(junior_dtype="bfloat16"))):
        folder, dtype = tmp_path / str(number), changes.pop("junior_dtype", None)
        config = AutoConfig.from_pretrained(junior)
        config.update(changes)
        config.save_pretrained(folder)
        settings = dict(junior_model=str(folder)) | ({} if dtype is None else dict(junior_dtype=dtype))
        for on_gpu in (True, False):
            arguments = engine_arguments(settings, senior, on_gpu=on_gpu, batch=4)
            reason = arguments["additional_config"][REASON_KEY]
            assert reason.startswith(
                "lazy (the models' embeddings have 448 and 512" if dtype is None else "lazy (junior_d"
            )
    assert draft_problem(junior, senior) is None and not has_windows(senior, junior)
    MistralConfig(sliding_window=32).save_pretrained(tmp_path / "windows")
    windows = str(tmp_path / "windows")
    told = engine_arguments(dict(junior_model=windows), windows)["additional_config"]
    assert told[REASON_KEY].startswith("lock_step (attention has windows")
    assert told[CONFIG_KEY]["mode"] == "lock_step", "the engine itself would make lazy of auto, and refuse"
