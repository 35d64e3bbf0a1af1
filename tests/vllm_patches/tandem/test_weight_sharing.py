"""When a junior can read its senior's base weights: the decision, without an engine."""

import dataclasses

import pytest
import torch

from vllm_patches.tandem.config import TandemConfig
from vllm_patches.tandem.weight_sharing import Senior, decide, is_same_model

SENIOR = Senior(
    model="hub/base", adapters=True, load_format="auto", dtype="bfloat16", quantization=None, trust_remote_code=False
)


@pytest.mark.parametrize(
    ("junior", "senior", "says"),
    [
        ({}, dict(adapters=False), "the senior has no adapters"),
        (dict(junior_model="hub/other"), {}, "the junior is hub/other and the senior's base is hub/base"),
        (dict(junior_revision="b"), dict(revision="a"), "the junior is hub/base"),
        ({}, dict(load_format="dummy"), "load_format is dummy"),
        (dict(junior_load_format="dummy"), {}, "junior_load_format is dummy"),
        (dict(junior_dtype="float32"), {}, "junior_dtype is float32 and the senior's dtype bfloat16"),
        ({}, dict(quantization="fp8"), "quantized"),
        (dict(junior_quantization="fp8"), {}, "quantized"),
        (dict(junior_trust_remote_code=True), {}, "junior_trust_remote_code"),
        ({}, dict(changed="the base is another"), "the base is another"),
    ],
)
def test_each_difference_keeps_the_weights_apart(junior, senior, says):
    settings = dict(junior_model="hub/base") | junior
    senior = dataclasses.replace(SENIOR, **senior)
    shares, reason = decide(TandemConfig(**settings), senior)
    assert not shares
    assert says in reason
    with pytest.raises(ValueError, match=f"share_weights is true.*{says}"):
        decide(TandemConfig(**settings, share_weights=True), senior)
    assert decide(TandemConfig(**settings, share_weights=False), senior) == (False, "as configured")


@pytest.mark.parametrize("share", ["auto", True])
@pytest.mark.parametrize("senior", [SENIOR, Senior(adapters=True), Senior()])
def test_the_same_model_is_shared_and_what_is_unknown_refuses_nothing(share, senior):
    config = TandemConfig("hub/base", share_weights=share, junior_dtype="bfloat16", junior_trust_remote_code=False)
    assert decide(config, senior)[0]


@pytest.mark.parametrize("value", ["yes", None, 1, "true"])
def test_the_setting_takes_auto_true_and_false(value):
    with pytest.raises(ValueError, match="share_weights is .*expected auto, true or false"):
        TandemConfig("j", share_weights=value)


def test_one_folder_has_many_names(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "twin").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    model = str(tmp_path / "model")
    for other in (f"{model}/", "model", "./model", str(tmp_path / "link"), str(tmp_path / "twin" / ".." / "model")):
        assert is_same_model(model, None, other, None)
    assert not is_same_model(model, None, str(tmp_path / "twin"), None)
    assert not is_same_model("hub/base", None, "hub/other", None)
    assert not is_same_model("hub/base", "a", "hub/base", "b")


def test_a_hub_id_is_the_folder_that_the_cache_has_for_it(tmp_path, monkeypatch):
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "blob").write_text("{}")
    (snapshot / "config.json").symlink_to(tmp_path / "blob")
    cached = {("hub/base", None): str(snapshot / "config.json")}
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache", lambda name, file, revision: cached.get((name, revision))
    )
    assert is_same_model("hub/base", None, str(snapshot), None)
    assert not is_same_model("hub/base", "other", str(snapshot), None)
    assert not is_same_model("hub/else", None, str(snapshot), None)


def test_memory_counts_the_weights_that_the_cpu_backend_has_packed_away():
    """It leaves an empty parameter, and a start that said 110 MiB took 513."""
    from vllm_patches.tandem.junior import memory_of

    plain, packed = torch.nn.Linear(6, 4, bias=False), torch.nn.Linear(6, 4, bias=False)
    packed.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    packed.input_size_per_partition, packed.output_size_per_partition, packed.params_dtype = 6, 4, torch.float32
    assert memory_of(torch.nn.Sequential(plain, packed)) == 2 * 6 * 4 * 4
