"""`mode: auto` is decided by device, adapter, word alignment and size, and says why."""

import pytest

from vllm_patches.tandem.config import CONFIG_KEY, REASON_KEY, TandemConfig, engine_arguments
from vllm_patches.tandem.mode_choice import choose_mode, parameter_share


@pytest.mark.parametrize(
    ("settings", "lora", "on_gpu", "mode"),
    [
        (dict(mode="lock_step"), False, True, "lock_step"),
        (dict(mode="speculative"), False, False, "speculative"),
        (dict(word_align="before"), False, True, "lock_step"),
        (dict(), True, True, "lock_step"),
        (dict(), False, True, "speculative"),
        (dict(), False, False, "lazy"),
    ],
)
def test_without_the_senior_at_hand(settings, lora, on_gpu, mode):
    config = TandemConfig("j", **settings)
    assert choose_mode(config.mode, config.word_align, "j", None, lora, on_gpu)[0] == mode
    arguments = engine_arguments(dict(junior_model="j") | settings, None, lora, on_gpu)
    assert ("speculative_config" in arguments) == (mode == "speculative")
    if mode == "speculative":
        assert arguments["additional_config"][CONFIG_KEY]["mode"] == "speculative"
        assert arguments["additional_config"][REASON_KEY]


def test_on_a_cpu_the_sizes_decide(models):
    senior = str(models["senior"])
    assert parameter_share(str(models["near"]), senior) == 1
    assert 0.1 < parameter_share(str(models["one_head"]), senior) < 0.5
    for senior, junior, mode in (
        ("senior", "near", "speculative"),
        ("senior", "one_head", "speculative"),
        ("one_head", "senior", "lazy"),
    ):
        pair = str(models[junior]), str(models[senior])
        chosen, reason = choose_mode("auto", "after", *pair, lora=False, on_gpu=False)
        assert chosen == mode
        assert "%" in reason
    assert choose_mode("auto", "after", "no/such-model", str(models["senior"]), lora=False, on_gpu=False)[0] == "lazy"
