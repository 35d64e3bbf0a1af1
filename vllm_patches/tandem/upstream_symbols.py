"""The upstream symbols that tandem decoding overrides, calls or relies on, and what each must look like."""

from __future__ import annotations

from vllm_patches.upstream import Fields, Signature, Source, Symbol

_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"


TANDEM_SYMBOLS: tuple[Symbol, ...] = (
    Symbol(
        f"{_RUNNER}.load_model",
        "overridden: loads the junior after the senior and adds its bytes to `model_memory_usage`",
        Source("self.model_memory_usage = m.consumed_memory"),
    ),
    Symbol(
        "vllm.v1.worker.cpu_model_runner:CPUModelRunner.load_model",
        "overridden in the same way",
        Source("self.model = get_model(vllm_config=self.vllm_config)"),
        needs="vllm on a CPU",
    ),
    Symbol(
        f"{_RUNNER}.initialize_kv_cache",
        "overridden: builds attention metadata builders per model",
        Source("self._kernel_block_sizes = kernel_block_sizes", "self.kv_cache_config = kv_cache_config"),
    ),
    Symbol(
        f"{_RUNNER}.get_kv_cache_spec",
        "gives the junior's layers KV caches because they are registered in the senior's forward context",
        Source("attn_layers = get_layers_from_vllm_config(self.vllm_config, layer_type)"),
    ),
    Symbol(
        f"{_RUNNER}.initialize_attn_backend",
        "splits attention groups by backend, spec and number of query heads, so that both models' layers fit",
        Source("num_heads_q: int", "AttentionGroupKey(attn_backend, layer_kv_cache_spec, num_heads_q)"),
    ),
    Symbol(
        f"{_RUNNER}._update_states",
        "overridden: starts, resumes and removes author schedules",
        Signature("self scheduler_output"),
    ),
    Symbol(
        f"{_RUNNER}._prepare_inputs",
        "overridden: records what the step runs; `discard_request_mask` names the rows that do not sample",
        Source(
            'scheduler_output: "SchedulerOutput", num_scheduled_tokens: np.ndarray',
            "self.discard_request_mask.np[:num_reqs] = (self.optimistic_seq_lens_cpu[:num_reqs].numpy() "
            "< num_tokens_np)",
        ),
    ),
    Symbol(
        f"{_RUNNER}._build_attention_metadata",
        "overridden: skipped in lazy mode, where each model gets metadata of its own",
        Source("return attn_metadata, spec_decode_common_attn_metadata"),
    ),
    Symbol(
        f"{_RUNNER}._model_forward",
        "overridden: both models, or the ones that the lazy plan names",
        Signature("self input_ids positions intermediate_tensors inputs_embeds model_kwargs"),
    ),
    Symbol(
        f"{_RUNNER}.execute_model",
        "calls the overridden methods in this order, then `model.compute_logits` on the last rows",
        Source(
            "deferred_state_corrections_fn = self._update_states(scheduler_output)",
            "self._prepare_inputs(scheduler_output, num_scheduled_tokens_np",
            "self._build_attention_metadata(",
            "model_output = self._model_forward(",
            "sample_hidden_states = hidden_states[logits_indices]\n"
            "                logits = self.model.compute_logits(sample_hidden_states)",
        ),
    ),
    Symbol(
        f"{_RUNNER}.sample_tokens",
        "overridden: advances the schedules, attaches `tandem_authors` to the output",
        Signature("self grammar_output"),
    ),
    Symbol(
        f"{_RUNNER}._sample",
        "overridden: under word_align='before' the rows that change their author are sampled again",
        Signature("self logits spec_decode_metadata"),
    ),
    Symbol("vllm.v1.outputs:LogprobsTensors", "the same", Fields("logprob_token_ids logprobs selected_token_ranks")),
    Symbol(
        f"{_RUNNER}._bookkeeping_sync",
        "rewinds the seeded generators of unsampled rows, which CPU generators cannot do; it gets substitutes",
        Source("gen.set_offset(gen.get_offset() - 4)", "gen = self.input_batch.generators.get(int(i))"),
    ),
    Symbol(
        f"{_RUNNER}._get_prompt_logprobs_dict",
        "calls `model.compute_logits` again after sampling and gets the senior's",
        Source("logits = self.model.compute_logits(prompt_hidden_states)"),
    ),
    Symbol(
        f"{_RUNNER}._dummy_run",
        "overridden: profiles and warms up the junior too",
        Source("self, num_tokens: int, cudagraph_runtime_mode: CUDAGraphMode | None = None"),
    ),
    Symbol(
        f"{_RUNNER}.reload_weights",
        "reloads the senior alone, by its plain names",
        Source("model = self.get_model()", "loaded_weights = model.load_weights(weights_iterator)"),
    ),
    Symbol(
        "vllm.v1.worker.gpu_input_batch:InputBatch.__init__",
        "token ids, computed counts, block table and generators are read from it",
        Source(
            "self.token_ids_cpu = self.token_ids_cpu_tensor.numpy()",
            "self.num_computed_tokens_cpu = self.num_computed_tokens_cpu_tensor.numpy()",
            "self.block_table = MultiGroupBlockTable(",
            "self.generators: dict[int, torch.Generator] = {}",
        ),
    ),
    Symbol(
        "vllm.v1.worker.gpu_input_batch:InputBatch._make_sampling_metadata",
        "shares the generators' dictionary with the sampler",
        Source("generators=self.generators"),
    ),
    Symbol(
        "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.forward_cpu",
        "0.28 ignores all seeds when one row has none (fixed in 0.29); unseeded rows get a substitute generator",
        Source(
            "return compiled_random_sample(logits), logits_to_return",
            "for i, generator in generators.items(): q[i].exponential_(generator=generator)",
        ),
    ),
    Symbol(
        "vllm.v1.worker.block_table:BlockTable.get_numpy_array",
        "slot mappings of the lazy mode are computed from it",
        Signature("self"),
    ),
    Symbol(
        "vllm.v1.worker.utils:AttentionGroup",
        "one per model and attention group in the lazy mode",
        Fields("backend layer_names kv_cache_spec kv_cache_group_id metadata_builders"),
    ),
    Symbol(
        "vllm.v1.worker.utils:AttentionGroup.create_metadata_builders",
        "called with the model's own configuration",
        Signature("self vllm_config device kernel_block_size num_metadata_builders"),
    ),
    Symbol(
        "vllm.v1.attention.backend:CommonAttentionMetadata",
        "filled in for the lazy mode's sub-batches",
        Fields(
            "query_start_loc query_start_loc_cpu seq_lens seq_lens_cpu_upper_bound num_reqs num_actual_tokens "
            "max_query_len max_seq_len block_table_tensor slot_mapping causal positions is_prefilling"
        ),
    ),
    Symbol(
        "vllm.forward_context:set_forward_context",
        "surrounds each sub-batch's forward pass",
        Source("cudagraph_runtime_mode: CUDAGraphMode = CUDAGraphMode.NONE", "slot_mapping: dict[str, torch.Tensor]"),
    ),
    Symbol(
        "vllm.forward_context:override_forward_context",
        "turns CUDA graphs off around the junior's forward pass in lock-step",
        Signature("forward_context"),
    ),
    Symbol(
        "vllm.forward_context:ForwardContext", "the same", Fields("cudagraph_runtime_mode attn_metadata slot_mapping")
    ),
    Symbol(
        "vllm.compilation.backends:set_model_tag", "keeps compiled junior and senior apart", Signature("tag is_encoder")
    ),
    Symbol(
        "vllm.model_executor.model_loader:get_model",
        "loads the junior under a prefix of its own",
        Signature("vllm_config model_config prefix load_config"),
    ),
    Symbol(
        "vllm.engine.arg_utils:EngineArgs.create_model_config",
        "reads the junior's model configuration",
        Signature("self"),
    ),
    Symbol(
        "vllm.config:VllmConfig._get_quantization_config",
        "reads the junior's quantization",
        Signature("model_config load_config"),
    ),
    Symbol(
        "vllm.v1.worker.gpu_worker:Worker.init_device",
        "overridden: gives the model runner its tandem class",
        Source("self.model_runner = GPUModelRunnerV1(self.vllm_config, self.device)"),
    ),
    Symbol(
        "vllm.v1.worker.cpu_worker:CPUWorker.init_device",
        "overridden in the same way",
        Source('self.model_runner = CPUModelRunner(self.vllm_config, torch.device("cpu"))'),
        needs="vllm on a CPU",
    ),
    Symbol(
        "vllm.v1.worker.gpu_worker:Worker.determine_available_memory",
        "subtracts `model_memory_usage`, the junior's bytes included, from what the KV cache may take",
        Source("weights_memory=int(self.model_runner.model_memory_usage)"),
    ),
    Symbol(
        "vllm.v1.worker.gpu_worker:Worker.sleep",
        "overridden: a level 2 sleep discards the junior, which is copied to the host first",
        Source("if level == 2:", "model = self.model_runner.model"),
    ),
    Symbol(
        "vllm.v1.worker.gpu_worker:Worker.wake_up",
        "overridden: writes the junior back with the `weights` tag",
        Signature("self tags"),
    ),
    Symbol(
        "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
        "wrapped in lazy mode: blocks that one-token queries fill are not cached here",
        Source("delay_cache_blocks: bool = False,", "self.coordinator.cache_blocks(request, num_tokens_to_cache)"),
    ),
    Symbol(
        "vllm.v1.core.kv_cache_manager:KVCacheManager.cache_blocks",
        "called in lazy mode with the tokens that both models hold; caches full blocks only",
        Signature("self request num_computed_tokens"),
    ),
    Symbol(
        "vllm.v1.core.sched.scheduler:Scheduler.add_request",
        "overridden: a faulty request ends with an error instead of ending the engine",
        Signature("self request"),
    ),
    Symbol(
        "vllm.v1.core.sched.scheduler:Scheduler.finish_requests",
        "called for a refused request",
        Signature("self request_ids finished_status"),
    ),
    Symbol(
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
        "overridden: attaches each token's author to what goes to the client",
        Signature("self scheduler_output model_runner_output"),
    ),
    Symbol(
        "vllm.v1.core.sched.output:NewRequestData",
        "a new request's prompt, sampling parameters and cached tokens are read from it",
        Fields("req_id prompt_token_ids sampling_params num_computed_tokens"),
    ),
    Symbol(
        "vllm.v1.core.sched.output:CachedRequestData",
        "resumed requests are read from it",
        Fields("req_ids resumed_req_ids num_computed_tokens"),
    ),
    Symbol(
        "vllm.v1.outputs:ModelRunnerOutput",
        "carries `tandem_authors` and `tandem_held` as plain attributes, which pickle",
        Fields("req_ids req_id_to_index sampled_token_ids"),
    ),
    Symbol(
        "vllm.v1.engine:EngineCoreOutput",
        "`routed_experts` and `kv_transfer_params` carry the authorship",
        Fields("request_id new_token_ids finish_reason kv_transfer_params routed_experts"),
    ),
    Symbol(
        "vllm.v1.engine:EngineCoreOutputs",
        "a refused request's end is added to them; the speculative mode splits an output into one per token",
        Fields("outputs"),
    ),
    Symbol(
        "vllm.v1.engine:EngineCoreRequest",
        "checked by the front end and, as `Request`, by the scheduler",
        Fields("request_id prompt_token_ids sampling_params resumable"),
    ),
    Symbol(
        "vllm.v1.engine.output_processor:OutputProcessor.process_outputs",
        "relied on: takes outputs in their order, and ignores those of a response that a stop string has ended",
        Source(
            "for engine_core_output in engine_core_outputs:",
            "req_state = self.request_states.get(req_id) if req_state is None:",
        ),
    ),
    Symbol(
        "vllm.v1.engine.output_processor:RequestState._new_completion_output",
        "joins the per-token arrays of a finished response",
        Source("routed_experts = np.concatenate(self.routed_experts_chunks, axis=0)"),
    ),
    Symbol(
        "vllm.v1.engine.parallel_sampling:ParentRequest._get_child_sampling_params",
        "counts the seed up over n responses, which keeps their coins apart",
        Source("child_sampling_params.seed = seed + index"),
    ),
    Symbol(
        "vllm.v1.sample.logits_processor:LogitsProcessor.validate_params",
        "overridden: the front end refuses faulty tandem settings",
        Signature("cls sampling_params"),
    ),
)

_LORA = "vllm.lora.layers"

# What a junior that reads the senior's base weights relies on besides; without it the junior loads its own.
SHARED_WEIGHTS_SYMBOLS: tuple[Symbol, ...] = (
    Symbol(
        "vllm.model_executor.model_loader.utils:initialize_model",
        "builds the shared junior, without loading",
        Signature("vllm_config prefix model_class model_config"),
    ),
    Symbol(
        "vllm.utils.torch_utils:set_default_torch_dtype", "surrounds it, as in vLLM's own loader", Signature("dtype")
    ),
    Symbol(
        "vllm.model_executor.layers.linear:UnquantizedLinearMethod.create_weights",
        "makes weights with `torch.empty`, which gives none here",
        Source("torch.empty("),
    ),
    Symbol(
        f"{_LORA}.base_linear:BaseLinearLayerWithLoRA.__init__",
        "keeps the layer that the shared junior uses",
        Source("self.base_layer = base_layer"),
    ),
    Symbol(
        f"{_LORA}.base_linear:BaseLinearLayerWithLoRA._apply_sync",
        "adds the adapter to the base layer's output, and leaves that layer as it is",
        Source(
            "output = self._get_quant_method().apply(self.base_layer, x, bias)",
            "return self._apply_lora_to_output(x, output)",
        ),
    ),
    Symbol(
        f"{_LORA}.base_linear:BaseLinearLayerWithLoRA.apply",
        "ends in `_apply_lora_to_output`, which one pass for both models confines to the senior's rows",
        Source("return self._apply_sync(x, bias)"),
    ),
    Symbol(
        f"{_LORA}.base_linear:BaseLinearLayerWithLoRA._apply_base_forward",
        "the same",
        Source("return self._apply_lora_to_output(x, output)"),
    ),
    Symbol(
        f"{_LORA}.column_parallel_linear:MergedColumnParallelLinearWithLoRA.apply",
        "the same",
        Source("return self._apply_base_forward(x)", "return super().apply(x, bias)"),
    ),
    Symbol(
        f"{_LORA}:VocabParallelEmbeddingWithLoRA.forward",
        "the same",
        Source("full_output = self.base_layer.forward(x)"),
    ),
    Symbol(
        f"{_LORA}:LogitsProcessorWithLoRA.__init__",
        "the same",
        Source("self.base_layer = base_layer"),
    ),
    Symbol(
        "vllm.model_executor.layers.attention:Attention.__init__",
        "the only layers of the shared junior's own: each has a name and a KV cache",
        Source("compilation_config.static_forward_context[prefix] = self"),
    ),
    Symbol(
        "vllm.model_executor.layers.attention:Attention.process_weights_after_loading",
        "called on them, as vLLM's loader does",
        Signature("self act_dtype"),
    ),
    Symbol("vllm.config.offload:OffloadConfig", "offloaded weights are refused", Fields("uva prefetch")),
    Symbol("vllm.config:VllmConfig", "the same, and weight transfer", Fields("offload_config weight_transfer_config")),
    Symbol(
        "vllm.v1.worker.gpu_worker:Worker.add_lora",
        "surrounded: the shared weights must be as they were",
        Signature("self lora_request"),
    ),
    Symbol("vllm.v1.worker.gpu_worker:Worker.start_weight_update", "overridden: refused", Signature("self")),
)

# What adapters in the lazy mode rely on besides.
LAZY_ADAPTERS_SYMBOLS: tuple[Symbol, ...] = (
    Symbol(
        "vllm.v1.worker.lora_model_runner_mixin:LoRAModelRunnerMixin._set_active_loras",
        "called before each of the senior's passes",
        Signature("self prompt_lora_mapping token_lora_mapping lora_requests mapping_type"),
    ),
    Symbol(
        "vllm.v1.worker.gpu_input_batch:InputBatch.make_lora_inputs",
        "what the lazy mode computes in its stead, for rows of its own",
        Source(
            "prompt_lora_mapping = tuple(req_lora_mapping.repeat(num_sampled_tokens))",
            "token_lora_mapping = tuple(req_lora_mapping.repeat(num_scheduled_tokens))",
            "self.lora_id_to_lora_request.values()",
        ),
    ),
)
