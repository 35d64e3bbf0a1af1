"""The combinations of engine options that tandem decoding refuses, each by name."""

from __future__ import annotations

from vllm.v1.engine.input_processor import InputProcessor

from vllm_patches import guard
from vllm_patches.tandem.config import (
    REASON_KEY,
    SCHEDULER,
    SPECULATIVE_SCHEDULER,
    RequestSettings,
    TandemConfig,
    names_in_line,
)
from vllm_patches.tandem.mode_choice import choose_mode
from vllm_patches.tandem.weight_sharing import Senior, decide
from vllm_patches.upstream import is_replaced


class TandemRefusedError(ValueError):
    """The engine's options cannot be combined with tandem decoding."""


def resolve_mode(config: TandemConfig, vllm_config) -> str:
    """The engine's mode; ``auto`` is lazy or lock-step, since ``engine_arguments`` writes ``speculative`` out."""
    return mode_and_reason(config, vllm_config)[0]


def mode_and_reason(config: TandemConfig, vllm_config) -> tuple[str, str]:
    """The engine's mode, and the same with its reason, for a log: what ``engine_arguments`` wrote down, unless the
    engine was given an adapter that it was not told of, or its flags were written by hand."""
    mode, reason = choose_mode(config.mode, config.word_align, vllm_config.lora_config is not None, on_gpu=False)
    written = vllm_config.additional_config.get(REASON_KEY, "")
    if written.startswith(f"{mode} "):
        return mode, written
    if config.mode == "auto" and mode == "lazy":
        reason = "neither drafts nor an adapter were configured"
    return mode, f"{mode} ({reason})"


def senior_of(config: TandemConfig, vllm_config) -> Senior:
    """What decides whether this engine's junior can read its senior's weights."""
    adapters = vllm_config.lora_config is not None
    if not adapters or config.share_weights is False:
        return Senior(adapters=adapters)
    model, load_format = vllm_config.model_config, vllm_config.load_config.load_format
    return Senior(
        model=model.model,
        revision=model.revision,
        adapters=True,
        load_format=str(getattr(load_format, "value", load_format)),
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=model.quantization,
        trust_remote_code=model.trust_remote_code,
        changed=_base_change(vllm_config),
    )


def _base_change(vllm_config) -> str | None:
    unsupported = guard.problems("shared_weights")
    if unsupported:
        return "shared weights were not written for this vLLM: " + "; ".join(unsupported)
    offload = vllm_config.offload_config
    if offload.uva.cpu_offload_gb or offload.prefetch.offload_group_size:
        return "weights are offloaded to the host, layer by layer"
    if vllm_config.weight_transfer_config is not None:
        return "weight_transfer_config is set, which sends full weights"
    return "hf_overrides changes the senior's configuration" if vllm_config.model_config.hf_overrides else None


def check_request_settings(settings: RequestSettings, mode: str, structured_output: bool) -> None:
    """Raise ValueError for a request that an engine in this mode cannot serve."""
    if settings.params.word_align != "before":
        return
    if mode != "lock_step":
        raise ValueError("word_align='before' needs both models' samples at every step: an engine in lock_step mode")
    if settings.resume_len:
        raise ValueError("a response under word_align='before' cannot be resumed from its tokens alone")
    if structured_output:
        raise ValueError("word_align='before' takes no structured output: the second sample would ignore the grammar")


def check_engine(config: TandemConfig, vllm_config) -> None:
    """Raise TandemRefusedError, naming every fault with its remedy, unless this engine can decode in tandem."""
    parallel, model, cache = vllm_config.parallel_config, vllm_config.model_config, vllm_config.cache_config
    faults = [
        sentence
        for fault, sentence in (
            (
                vllm_config.use_v2_model_runner or not is_replaced(InputProcessor.process_inputs),
                "vLLM has not loaded this plug-in, which keeps the V1 model runner and checks requests: leave "
                "VLLM_PLUGINS unset, or name verl_duets in it",
            ),
            (
                vllm_config.scheduler_config.async_scheduling,
                "asynchronous scheduling is on: pass async_scheduling=False",
            ),
            *_class_faults(config, vllm_config),
            *_speculation_faults(config, vllm_config),
            (parallel.pipeline_parallel_size > 1, "pipeline parallelism is on: set pipeline_parallel_size to 1"),
            (
                parallel.prefill_context_parallel_size > 1 or parallel.decode_context_parallel_size > 1,
                "context parallelism is on: set its sizes to 1",
            ),
            (
                parallel.data_parallel_size > 1,
                "data parallelism inside one engine is on: start one engine per replica instead",
            ),
            (parallel.use_ubatching, "dual-batch overlap is on: turn it off"),
            (parallel.enable_eplb, "expert load balancing is on: turn enable_eplb off"),
            (
                vllm_config.kv_transfer_config is not None,
                "a KV connector is configured: its blocks would lack the junior's part",
            ),
            (
                _returns_routed_experts(vllm_config),
                "enable_return_routed_experts is on: the authorship uses that channel",
            ),
            *_sharing_faults(config, vllm_config),
            (model.is_multimodal_model, "the senior is multimodal: give a text model"),
            (model.is_encoder_decoder, "the senior is an encoder-decoder: give a decoder"),
            (model.runner_type != "generate", f"the runner type is {model.runner_type!r}: tandem generates"),
            (model.uses_mrope, "the senior uses multimodal rotary positions"),
            (model.enable_prompt_embeds, "prompt embeddings are on: give token ids"),
            (cache.kv_sharing_fast_prefill, "kv_sharing_fast_prefill is on: turn it off"),
        )
        if fault
    ]
    if faults:
        raise TandemRefusedError("tandem decoding refuses this engine: " + "; ".join(faults))


def _class_faults(config: TandemConfig, vllm_config) -> list[tuple[bool, str]]:
    """A scheduler of another kind sends no mask, caches blocks that one model lacks, or takes one token a step."""
    mode = resolve_mode(config, vllm_config)
    line = names_in_line(vllm_config.scheduler_config.get_scheduler_cls())
    speculates = mode == "speculative"
    scheduler = SPECULATIVE_SCHEDULER if speculates else SCHEDULER
    return [
        (
            scheduler not in line or (SPECULATIVE_SCHEDULER in line) != speculates,
            f"scheduler_cls is {line[0]}, and mode {mode!r} takes {scheduler}: pass all that engine_arguments returns, "
            "or its flags",
        )
    ]


def _sharing_faults(config: TandemConfig, vllm_config) -> list[tuple[bool, str]]:
    try:
        decide(config, senior_of(config, vllm_config))
    except ValueError as error:
        return [(True, str(error))]
    return []


def _speculation_faults(config: TandemConfig, vllm_config) -> list[tuple[bool, str]]:
    """What the speculative mode needs and the other modes refuse, as pairs of (is it a fault, sentence)."""
    model, drafts = vllm_config.model_config, vllm_config.speculative_config
    if resolve_mode(config, vllm_config) != "speculative":
        return [(drafts is not None, "speculative decoding is on: leave speculative_config out")]
    if drafts is None or drafts.method != "draft_model" or drafts.model != config.junior_model:
        return [(True, "the junior is not the draft model: pass all that engine_arguments returns, or its flags")]
    junior = drafts.draft_model_config
    return [
        (drafts.num_speculative_tokens != config.num_draft_tokens, "num_speculative_tokens is not num_draft_tokens"),
        (drafts.draft_sample_method != "greedy", "draft_sample_method is set: the drafter samples with shared noise"),
        (drafts.parallel_drafting, "parallel_drafting is on: a junior drafts one token after the other"),
        (drafts.use_heterogeneous_vocab, "use_heterogeneous_vocab is on: both models need one vocabulary"),
        (
            bool(drafts.num_speculative_tokens_per_batch_size),
            "num_speculative_tokens_per_batch_size is set: without drafts a junior's turn would never come",
        ),
        (
            vllm_config.scheduler_config.long_prefill_token_threshold == 1
            or vllm_config.scheduler_config.max_num_batched_tokens < config.num_draft_tokens + 2,
            "a step has no room for a token and its drafts, and without drafts a junior's turn never comes: raise "
            f"max_num_batched_tokens to {config.num_draft_tokens + 2} or more, long_prefill_token_threshold to 2 or 0",
        ),
        (
            junior.max_model_len < model.max_model_len,
            f"the junior reads {junior.max_model_len} tokens and max_model_len is {model.max_model_len}: lower it",
        ),
        (
            junior.dtype != model.dtype or config.junior_dtype not in (None, str(model.dtype).removeprefix("torch.")),
            "junior_dtype differs from the senior's: the speculative mode takes one dtype, leave it out",
        ),
        (
            config.junior_trust_remote_code not in (None, model.trust_remote_code),
            "junior_trust_remote_code differs from trust_remote_code: the speculative mode takes one setting",
        ),
        (
            bool(model.logits_processors),
            "custom logits processors are on: they would not reach the tokens that the junior writes",
        ),
    ]


def _returns_routed_experts(vllm_config) -> bool:
    # 0.31 moved the switch from the model's configuration to one of its own.
    holder = getattr(vllm_config, "aux_output_config", None) or vllm_config.model_config
    return holder.enable_return_routed_experts


def refuse_cache_groups(kv_cache_config, mode: str) -> None:
    """Raise :class:`TandemRefusedError` unless both models' layers keep their cache in one group that fits the mode."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    count = len(kv_cache_config.kv_cache_groups)
    if count != 1:
        raise TandemRefusedError(
            f"the two models need {count} KV cache groups; tandem decoding takes models with one kind of attention (no "
            "sliding windows beside full attention, no state-space layers)"
        )
    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    specs = getattr(spec, "kv_cache_specs", {"": spec}).values()
    if mode != "lock_step" and not all(isinstance(one, FullAttentionSpec) for one in specs):
        raise TandemRefusedError(
            f"the models' attention has windows, and in the {mode} mode a model reads behind the other, where vLLM has "
            "freed the blocks that left the window: set mode to 'lock_step'"
        )
