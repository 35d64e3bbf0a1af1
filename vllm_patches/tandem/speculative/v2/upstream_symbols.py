"""The upstream symbols that the speculative mode on the V2 runner needs besides, and what each must look like."""

from __future__ import annotations

from vllm_patches.upstream import Fields, Signature, Source, Symbol

_GPU = "vllm.v1.worker.gpu"
_RUNNER = f"{_GPU}.model_runner:GPUModelRunner"
_SPECULATOR = f"{_GPU}.spec_decode.speculator:DraftModelSpeculator"

SPECULATIVE_V2_SYMBOLS: tuple[Symbol, ...] = (
    Symbol(
        f"{_GPU}.model_runner:init_speculator",
        "replaced for an engine that decodes in tandem on V2, which gets the junior's speculator",
        Source('raise NotImplementedError(f"{speculative_config.method} is not supported yet.")'),
    ),
    Symbol(
        f"{_RUNNER}.__init__",
        "takes the speculator from there",
        Source("self.speculator = init_speculator(self.vllm_config, self.device)"),
    ),
    Symbol(
        f"{_RUNNER}.load_model",
        "overridden: the speculator loads the junior within it",
        Source("if isinstance(self.speculator, DraftModelSpeculator):", "self.speculator.load_model(self.model)"),
    ),
    Symbol(
        f"{_RUNNER}.initialize_kv_cache",
        "overridden: refuses several cache groups; gives the speculator block tables and attention groups",
        Signature("self kv_cache_config"),
    ),
    Symbol(
        f"{_RUNNER}.finish_requests",
        "overridden: forgets what was kept of a request",
        Signature("self scheduler_output"),
    ),
    Symbol(
        f"{_RUNNER}.add_requests",
        "overridden: starts the schedules; a preempted request comes as a new one with all its tokens",
        Source(
            "assert new_req_data.prefill_token_ids is not None",
            "for new_req_data in scheduler_output.scheduled_new_reqs:",
        ),
    ),
    Symbol(
        f"{_RUNNER}.prepare_inputs",
        "overridden: records which requests sample and which drafts count",
        Source(
            "scheduler_output: SchedulerOutput, batch_req_state",
            "draft_tokens = scheduler_output.scheduled_spec_decode_tokens",
        ),
    ),
    Symbol(
        f"{_RUNNER}.sample",
        "overridden: V2's sampling and rejection sampler give way to the shared noise and to the authors",
        Signature("self hidden_states input_batch grammar_output"),
    ),
    Symbol(
        f"{_RUNNER}.sample_tokens",
        "overridden; calls `sample`, then updates the requests, then the speculator",
        Source(
            "sampler_output, num_sampled, num_rejected = self.sample(",
            "async_output = AsyncOutput(",
            "self.postprocess_sampled(",
            "draft_tokens = self.speculator.propose(",
            "self.req_states.draft_tokens[input_batch.idx_mapping] = draft_tokens",
        ),
    ),
    Symbol(
        f"{_RUNNER}.take_draft_token_ids",
        "overridden: as many drafts as were made",
        Signature("self"),
    ),
    Symbol(
        f"{_SPECULATOR}",
        "the junior's speculator is a subclass: buffers, attention groups",
        Source(
            "def load_draft_model(",
            "def attn_vllm_config(self)",
            "self.draft_attn_layer_names = all_attn_layers - target_attn_layer_names",
            "active_layer_names=self.draft_attn_layer_names",
            "self.block_tables = block_tables",
            "self.draft_tokens = torch.zeros(",
        ),
    ),
    Symbol(
        f"{_GPU}.attn_utils:build_attn_metadata",
        "called for the junior's passes",
        Source(
            "attn_groups: list[list[AttentionGroup]], num_reqs: int, num_tokens: int",
            "query_start_loc_gpu: torch.Tensor",
            "query_start_loc_cpu: torch.Tensor, max_query_len: int, seq_lens: torch.Tensor, max_seq_len: int",
            "block_tables: Sequence[torch.Tensor], slot_mappings: torch.Tensor, kv_cache_config: KVCacheConfig",
        ),
    ),
    Symbol(
        f"{_GPU}.block_table:BlockTables",
        "block ids of the step's requests and the size of a block",
        Source("self.input_block_tables", "self.kernel_block_sizes = kernel_block_sizes"),
    ),
    Symbol(
        f"{_GPU}.input_batch:InputBatch",
        "the step's requests, tokens and logits",
        Fields(
            "req_ids num_reqs idx_mapping idx_mapping_np expanded_idx_mapping expanded_local_pos num_scheduled_tokens "
            "num_draft_tokens_per_req query_start_loc_np seq_lens_cpu_upper_bound num_computed_tokens_np "
            "prefill_len_np input_ids positions logits_indices cu_num_logits"
        ),
    ),
    Symbol(
        f"{_GPU}.input_batch:_combine_sampled_and_draft_tokens_kernel",
        "relied on: a request that emitted nothing runs its prompt's last token again, before its drafts",
        Source(
            "if NUM_NEW_SAMPLED_TOKENS > 0 and first_logit_seq_pos >= prefill_len:",
            "tl.store(input_ids_ptr + query_end - num_draft_tokens + block, draft_tokens, mask=mask,",
        ),
    ),
    Symbol(
        f"{_GPU}.input_batch:_post_update_kernel",
        "relied on: reads the emitted tokens by the table's stride, and takes what was rejected off the computed ones",
        Source(
            "sampled_tokens_ptr + req_id * sampled_tokens_stride + num_sampled - 1",
            "sampled_tokens_ptr + req_id * sampled_tokens_stride + i",
            "computed_delta = query_len - num_rejected",
        ),
    ),
    Symbol(
        f"{_GPU}.states:RequestState",
        "slots of the requests, and their drafts",
        Source("self.req_id_to_index: dict[str, int] = {}", "self.draft_tokens[req_idx].zero_()"),
    ),
    Symbol(
        f"{_GPU}.sample.sampler:Sampler.apply_sampling_params",
        "called for both models' logits: min_tokens, temperature, top-k, top-p",
        Signature(
            "self logits expanded_idx_mapping idx_mapping idx_mapping_np pos input_ids expanded_local_pos "
            "skip_top_k_top_p"
        ),
    ),
    Symbol(
        f"{_GPU}.sample.logit_bias:LogitBiasState.add_request",
        "raises in the worker where min_tokens stands beside more stop tokens than it takes; we refuse such a request",
        Source("num_stop_token_ids > MAX_NUM_STOP_TOKEN_IDS"),
    ),
    Symbol(
        f"{_GPU}.sample.states:SamplingStates",
        "temperatures and the number of log-probs are read from it",
        Source("self.temperature = UvaBackedTensor(", "def max_num_logprobs(self", "NO_LOGPROBS"),
    ),
    Symbol(
        f"{_GPU}.sample.output:SamplerOutput",
        "what `sample` returns",
        Fields("sampled_token_ids logprobs_tensors num_nans num_sampled num_rejected"),
    ),
    Symbol(
        f"{_GPU}.async_utils:AsyncOutput.get_output",
        "relied on: keeps of each row of the table as many tokens as were emitted; the authors stand behind them",
        Source("sampled_token_ids: list[list[int]] = self.sampled_token_ids.tolist()", "del token_ids[num_tokens:]"),
    ),
    Symbol(
        f"{_GPU}.spec_decode.utils:DraftTokensHandler.get_draft_tokens",
        "relied on: gives the scheduler placeholders",
        Source("draft_token_ids = [[-1] * self.num_draft_tokens for _ in self.req_ids]"),
    ),
    Symbol("vllm.v1.outputs:DraftTokenIds", "the same", Fields("req_ids draft_token_ids")),
    Symbol("vllm.v1.outputs:AsyncModelRunnerOutput", "the step's output is a subclass", Source("def get_output(self)")),
    Symbol(
        "vllm.v1.worker.gpu_worker:Worker.__init__",
        "asks for the runner",
        Source("self.use_v2_model_runner = vllm_config.use_v2_model_runner"),
    ),
)

V2_CONFIG_SYMBOLS: tuple[Symbol, ...] = (
    Symbol(
        "vllm.config:VllmConfig._get_v2_model_runner_unsupported_features",
        "does not name the draft model of an engine that decodes in tandem on V2; untouched for all others",
        Source("unsupported.append(f\"speculative method '{speculative_config.method}'\")"),
    ),
)
