"""Combinations that tandem decoding does not take are refused by name, from vLLM's own resolved configuration."""

import re
from contextlib import nullcontext

import pytest
import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

import vllm_patches
from vllm_patches.tandem.config import REASON_KEY, TandemConfig, engine_arguments
from vllm_patches.tandem.engine_checks import (
    TandemRefusedError,
    check_engine,
    mode_and_reason,
    refuse_cache_groups,
    resolve_mode,
    senior_of,
)
from vllm_patches.tandem.weight_sharing import decide

SPECULATIVE_SCHEDULER = "vllm_patches.tandem.speculative.scheduler.SpeculativeScheduler"


@pytest.fixture
def configuration(models, monkeypatch):
    vllm_patches.register()
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")

    def build(tandem=None, **options):
        settings = dict(junior_model=str(models["junior"])) | (tandem or {})
        defaults = dict(dtype="float32", enforce_eager=True, max_model_len=256, kv_cache_memory_bytes=1 << 26)
        arguments = defaults | engine_arguments(settings) | options
        return TandemConfig.from_mapping(settings), EngineArgs(
            str(models["senior"]), **arguments
        ).create_engine_config()

    return build


def test_a_plain_engine_passes_and_auto_is_lazy(configuration):
    config, engine = configuration()
    check_engine(config, engine)
    assert resolve_mode(config, engine) == "lazy"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(speculative_config=dict(method="ngram", num_speculative_tokens=2)), "speculative decoding"),
        (dict(pipeline_parallel_size=2), "pipeline parallelism"),
        (dict(data_parallel_size=2), "data parallelism"),
        (dict(tandem=dict(share_weights=True)), "share_weights is true.*the senior has no adapters"),
        (
            dict(enable_lora=True, tandem=dict(share_weights=True)),
            "the junior is .*junior and the senior's base is .*senior",
        ),
        (dict(scheduler_cls=None), "scheduler_cls is vllm.*Scheduler, and mode 'lazy' takes .*TandemScheduler"),
        (
            dict(tandem=dict(mode="lock_step"), scheduler_cls=SPECULATIVE_SCHEDULER),
            "SpeculativeScheduler, and mode 'lock_step' takes .*TandemScheduler",
        ),
        (dict(enable_prompt_embeds=True), "prompt embeddings"),
        (dict(runner="pooling"), "runner type is 'pooling'"),
    ],
)
def test_a_combination_is_refused_by_name(configuration, options, says):
    config, engine = configuration(**options)
    with pytest.raises(TandemRefusedError, match=says):
        check_engine(config, engine)


class Changed:
    """A configuration with some values changed that vLLM's CPU platform would not let through."""

    def __init__(self, original, **changes):
        self.__dict__.update(changes, original=original)

    def __getattr__(self, name):
        return getattr(self.original, name)


@pytest.mark.parametrize("mode", ["lazy", "lock_step", "speculative"])
@pytest.mark.parametrize(
    ("part", "changes", "says"),
    [
        (None, dict(use_v2_model_runner=True), "vLLM has not loaded this plug-in"),
        (None, dict(kv_transfer_config=object()), "a KV connector is configured"),
        ("scheduler_config", dict(async_scheduling=True), "pass async_scheduling=False"),
        ("parallel_config", dict(prefill_context_parallel_size=2), "context parallelism"),
        ("parallel_config", dict(decode_context_parallel_size=2), "context parallelism"),
        ("parallel_config", dict(use_ubatching=True), "dual-batch overlap"),
        ("parallel_config", dict(enable_eplb=True), "turn enable_eplb off"),
        ("model_config", dict(is_multimodal_model=True), "the senior is multimodal"),
        ("model_config", dict(is_encoder_decoder=True), "the senior is an encoder-decoder"),
        ("model_config", dict(uses_mrope=True), "multimodal rotary positions"),
        ("cache_config", dict(kv_sharing_fast_prefill=True), "turn it off"),
    ],
)
def test_what_a_gpu_engine_could_be_given_is_refused_too(configuration, mode, part, changes, says):
    config, engine = configuration(dict(mode=mode))
    check_engine(config, engine)
    changed = Changed(engine, **({part: Changed(getattr(engine, part), **changes)} if part else changes))
    with pytest.raises(TandemRefusedError, match=says):
        check_engine(config, changed)


SPECULATIVE = dict(mode="speculative")


def test_the_speculative_engine_passes_and_its_drafter_is_the_junior(configuration, models):
    config, engine = configuration(SPECULATIVE | dict(num_draft_tokens=3))
    check_engine(config, engine)
    assert resolve_mode(config, engine) == "speculative"
    assert engine.speculative_config.num_speculative_tokens == 3
    assert engine.speculative_config.model == str(models["junior"])
    assert engine.use_v2_model_runner is False


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(speculative_config=None), "the junior is not the draft model"),
        (dict(speculative_config=dict(method="ngram", num_speculative_tokens=2)), "the junior is not the draft model"),
        (dict(speculative_config=dict(num_speculative_tokens=2)), "num_speculative_tokens is not num_draft_tokens"),
        (dict(speculative_config=dict(draft_sample_method="probabilistic")), "draft_sample_method is set"),
        (dict(speculative_config=dict(parallel_drafting=True)), "parallel_drafting is on"),
        (
            dict(speculative_config=dict(num_speculative_tokens_per_batch_size=[(1, 4, 4), (5, 8, 0)])),
            "a junior's turn would never come",
        ),
        (dict(speculative_config=dict(max_model_len=128)), "the junior reads 128 tokens and max_model_len is 256"),
        (dict(tandem=dict(junior_dtype="bfloat16")), "junior_dtype differs"),
        (dict(tandem=dict(junior_trust_remote_code=True)), "junior_trust_remote_code differs"),
        (dict(logits_processors=["some.module:Processor"]), "custom logits processors are on"),
        (dict(data_parallel_size=2), "data parallelism"),
        (
            dict(scheduler_cls="vllm_patches.tandem.scheduler.TandemScheduler"),
            "TandemScheduler, and mode 'speculative' takes .*SpeculativeScheduler",
        ),
        (dict(long_prefill_token_threshold=1), "no room for a token and its drafts"),
        (dict(max_num_batched_tokens=5, max_num_seqs=1), "no room .*raise max_num_batched_tokens to 6 or more"),
    ],
)
def test_the_speculative_mode_refuses_by_name(configuration, models, options, says):
    options = dict(options)
    tandem = SPECULATIVE | options.pop("tandem", {})
    drafts = options.get("speculative_config")
    if drafts is not None and "method" not in drafts:
        own = engine_arguments(dict(junior_model=str(models["junior"])) | tandem)["speculative_config"]
        options["speculative_config"] = own | drafts
    config, engine = configuration(tandem, **options)
    with pytest.raises(TandemRefusedError, match=says):
        check_engine(config, engine)


def test_windows_take_lock_step():
    shape = dict(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.float32)
    whole, window = FullAttentionSpec(**shape), SlidingWindowSpec(**shape, sliding_window=32)
    for one in (whole, window):
        mixed = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"senior": one, "junior": one})
        for spec in (one, mixed):
            groups = KVCacheConfig(1, [], [KVCacheGroupSpec(["layer"], spec)])
            refuse_cache_groups(groups, "lock_step")
            for mode in ("lazy", "speculative"):
                refuses = pytest.raises(TandemRefusedError, match="windows") if one is window else nullcontext()
                with refuses:
                    refuse_cache_groups(groups, mode)


def test_an_engine_whose_front_end_would_check_no_request_is_refused(configuration, monkeypatch):
    config, engine = configuration()
    monkeypatch.setattr(InputProcessor, "process_inputs", InputProcessor.process_inputs.__wrapped__)
    with pytest.raises(TandemRefusedError, match="vLLM has not loaded this plug-in"):
        check_engine(config, engine)


def test_the_channel_of_the_authorship_must_be_free(configuration):
    config, engine = configuration()
    # its holder depends on vLLM's version, and newer ones refuse it for a dense model before we do
    holder = getattr(engine, "aux_output_config", engine.model_config)
    assert holder.enable_return_routed_experts is False
    holder.enable_return_routed_experts = True
    with pytest.raises(TandemRefusedError, match="enable_return_routed_experts is on"):
        check_engine(config, engine)


def test_every_fault_is_named_at_once(configuration):
    config, engine = configuration(enable_prompt_embeds=True)
    # vLLM's CPU platform turns it off by itself
    engine.scheduler_config.async_scheduling = True
    with pytest.raises(TandemRefusedError, match="async_scheduling=False.*prompt embeddings"):
        check_engine(config, engine)


@pytest.mark.parametrize("mode", ["lazy", "lock_step", "speculative"])
def test_adapters_pass_in_every_mode(configuration, mode):
    check_engine(*configuration(dict(mode=mode), enable_lora=True))


@pytest.mark.parametrize(
    ("options", "changes", "says"),
    [
        (dict(load_format="dummy"), None, "load_format is dummy"),
        ({}, ("model_config", dict(quantization="fp8")), "a quantized base"),
        ({}, ("model_config", dict(hf_overrides=dict(rope_theta=5e5))), "hf_overrides"),
        ({}, (None, dict(weight_transfer_config=object())), "weight_transfer_config"),
        (dict(tandem=dict(junior_dtype="bfloat16")), None, "junior_dtype is bfloat16 and the senior's dtype float32"),
        (dict(tandem=dict(junior_revision="other")), None, "the junior is"),
        (dict(cpu_offload_gb=1), None, "weights are offloaded"),
    ],
)
def test_weights_are_shared_only_where_the_base_is_the_junior(configuration, models, options, changes, says):
    tandem = dict(junior_model=str(models["senior"]), mode="lock_step") | options.pop("tandem", {})
    for share in ("auto", True):
        config, engine = configuration(tandem | dict(share_weights=share), enable_lora=True, **options)
        if changes:
            part, values = changes
            engine = Changed(engine, **({part: Changed(getattr(engine, part), **values)} if part else values))
        if share is True:
            with pytest.raises(TandemRefusedError, match=f"share_weights is true.*{says}"):
                check_engine(config, engine)
        else:
            check_engine(config, engine)
            shares, reason = decide(config, senior_of(config, engine))
            assert not shares
            assert re.search(says, reason)


def test_the_junior_reads_the_base_of_a_senior_with_adapters(configuration, models):
    for share, expected in (("auto", True), (True, True), (False, False)):
        settings = dict(junior_model=str(models["senior"]), share_weights=share)
        config, engine = configuration(settings, enable_lora=True)
        check_engine(config, engine)
        assert decide(config, senior_of(config, engine))[0] is expected


def test_lora_makes_auto_lock_step(configuration):
    """Also where `engine_arguments` was not told of the adapter, and wrote another mode's reason down."""
    config, engine = configuration(enable_lora=True)
    check_engine(config, engine)
    assert engine.additional_config[REASON_KEY].startswith("lazy (")
    mode, reason = mode_and_reason(config, engine)
    assert (resolve_mode(config, engine), mode) == ("lock_step", "lock_step")
    assert reason.startswith("lock_step (LoRA is on")


def test_without_a_reason_written_down_the_engine_gives_its_own(configuration):
    config, engine = configuration()
    assert mode_and_reason(config, engine)[1].startswith("lazy (on a CPU, the models' sizes unknown")
    del engine.additional_config[REASON_KEY]
    assert mode_and_reason(config, engine) == ("lazy", "lazy (neither drafts nor an adapter were configured)")


@pytest.mark.parametrize("wish", ["0", "1", None])
def test_the_v1_runner_is_pinned_for_tandem_and_for_nobody_else(configuration, models, monkeypatch, wish):
    if wish is None:
        monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    else:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", wish)
    _, tandem = configuration()
    assert tandem.use_v2_model_runner is False
    tandem.additional_config = {}
    stock = type(tandem).use_v2_model_runner.fget.__wrapped__(tandem)
    assert tandem.use_v2_model_runner is stock
    assert stock is (wish == "1")


def test_a_junior_with_the_seniors_own_path_compiles_to_artifacts_of_its_own(configuration, models):
    from vllm_patches.tandem.junior import junior_vllm_config

    config, senior = configuration(dict(junior_model=str(models["senior"])))
    junior = junior_vllm_config(config, senior)
    assert junior.model_config.compute_hash() == senior.model_config.compute_hash()
    assert junior.compute_hash() != senior.compute_hash()
