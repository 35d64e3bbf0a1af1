"""The upstream symbols that the speculative mode overrides, calls or relies on, and what each must look like."""

from __future__ import annotations

from vllm_patches.upstream import Fields, Signature, Source, Symbol

_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer"


SPECULATIVE_SYMBOLS: tuple[Symbol, ...] = (
    Symbol(
        "vllm.v1.spec_decode.draft_model:DraftModelProposer",
        "the drafter's class, replaced by a subclass of it",
        Source("class DraftModelProposer(SpecDecodeBaseProposer)", 'prefix="draft_model"'),
    ),
    Symbol(
        "vllm.v1.spec_decode.draft_model:DraftModelProposer._get_model",
        "overridden: the junior gets its own load format",
        Source("draft_vllm_config = self._create_draft_vllm_config()", 'set_model_tag("draft_model")'),
    ),
    Symbol(
        f"{_PROPOSER}.propose",
        "surrounded: one first pass, then one token a pass from the sampled drafts",
        Source(
            "self.set_inputs_first_pass(",
            "draft_token_ids, draft_probs = self._sample_draft_tokens(",
            "if self.num_speculative_tokens > 1 and num_rejected_tokens_gpu is not None:",
            "common_attn_metadata.query_start_loc = self.arange[: batch_size + 1]",
        ),
    ),
    Symbol(
        f"{_PROPOSER}.set_inputs_first_pass",
        "overridden: the junior reads only tokens that it has not read",
        Signature(
            "self target_token_ids next_token_ids target_positions target_hidden_states token_indices_to_sample "
            "cad num_rejected_tokens_gpu"
        ),
    ),
    Symbol(
        f"{_PROPOSER}._sample_draft_tokens",
        "overridden: the junior samples its own law with the shared noise",
        Signature("self hidden_states sampling_metadata"),
    ),
    Symbol(
        f"{_PROPOSER}.prepare_next_token_ids_padded",
        "called by vLLM: the newest token of each request, from a table with -1 after the last",
        Signature("self sampled_token_ids requests gpu_input_batch discard_request_mask"),
    ),
    Symbol(
        f"{_RUNNER}._input_fits_in_drafter",
        "overridden: drafting never stops near the length limit",
        Signature("self common_attn_metadata"),
    ),
    Symbol(
        f"{_RUNNER}._calc_spec_decode_metadata",
        "relied on: the logits of a request are those of its last token and of its drafts, in this order",
        Source("num_sampled_tokens = num_draft_tokens + 1", "logits_indices = np.repeat("),
    ),
    Symbol(
        f"{_RUNNER}.propose_draft_token_ids",
        "relied on: calls the drafter after `_sample`, before tokens reach the host",
        Source(
            "num_spec_tokens_to_schedule = scheduler_output.num_spec_tokens_to_schedule",
            "num_speculative_tokens=num_spec_tokens_to_schedule,",
            "target_token_ids = self.input_ids.gpu[:total_num_tokens]",
        ),
    ),
    Symbol(
        "vllm.v1.sample.rejection_sampler:RejectionSampler.parse_output",
        "relied on: drops -1 from the emitted tokens, and their log-probs",
        Signature("output_token_ids vocab_size discard_req_indices logprobs_tensors"),
    ),
    Symbol(
        "vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p",
        "called for both models' logits",
        Signature("logits k p"),
    ),
    Symbol(
        "vllm.v1.sample.sampler:Sampler.gather_logprobs",
        "called for the writer's log-probs",
        Signature("logprobs num_logprobs token_ids"),
    ),
    Symbol(
        "vllm.v1.sample.metadata:SamplingMetadata",
        "temperature, top-k, top-p and the number of log-probs are read from it",
        Fields("temperature all_greedy all_random top_p top_k max_num_logprobs generators"),
    ),
    Symbol("vllm.v1.outputs:SamplerOutput", "what `_sample` returns", Fields("sampled_token_ids logprobs_tensors")),
    Symbol(
        "vllm.v1.core.sched.output:SchedulerOutput",
        "the drafts of a step, and how many to make for the next",
        Fields("num_scheduled_tokens scheduled_spec_decode_tokens num_spec_tokens_to_schedule"),
    ),
    Symbol(
        "vllm.v1.core.sched.scheduler:Scheduler.schedule",
        "relied on: pads a resumed request with drafts of -1; no draft at the last position",
        Source("num_scheduled_spec_tokens > 0", "- self.num_sampled_tokens_per_step", "] * self.num_spec_tokens"),
    ),
    Symbol(
        "vllm.config.speculative:SpeculativeConfig",
        "holds the junior as draft model",
        Fields(
            "method model num_speculative_tokens draft_model_config draft_sample_method parallel_drafting "
            "use_heterogeneous_vocab num_speculative_tokens_per_batch_size"
        ),
    ),
    Symbol(
        "vllm.v1.sample.logits_processor:build_logitsprocs",
        "refuses custom logits processors beside drafts, so the runner is shown none",
        Source("raise ValueError(STR_SPEC_DEC_REJECTS_LOGITSPROCS)"),
    ),
)
