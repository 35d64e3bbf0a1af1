"""The V1 model runner that decodes with two models: a mixin over vLLM's GPU and CPU runners.

vLLM schedules, batches and samples. This mixin decides which model runs which tokens, and gives the sampler, row by
row, the logits of the model that writes; every later stage (grammar, penalties, sampling, log-probs) is vLLM's.
"""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager

import numpy as np
import torch
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context, override_forward_context, set_forward_context
from vllm.logger import init_logger
from vllm.v1.worker.utils import AttentionGroup

from vllm_patches.tandem.config import CONFIG_KEY, TandemConfig, check_models, request_settings
from vllm_patches.tandem.engine_checks import mode_and_reason, refuse_cache_groups
from vllm_patches.tandem.junior import PREFIX, join_passes, junior_vllm_config, load_or_share, memory_of
from vllm_patches.tandem.plan import ModelRun, plan_lazy, writers_of
from vllm_patches.tandem.request_states import GeneratorGuard, RequestStates, Step, TandemStats
from vllm_patches.tandem.schedule import JUNIOR, SENIOR
from vllm_patches.tandem.sub_batch import SubBatchForward

logger = init_logger(f"vllm.{__name__}")


class TandemRunnerMixin:
    """Goes before ``GPUModelRunner`` or a subclass of it in the method resolution order."""

    def load_model(self, *args, **kwargs) -> None:
        super().load_model(*args, **kwargs)
        self.tandem_config = TandemConfig.from_mapping(self.vllm_config.additional_config[CONFIG_KEY])
        self.tandem_mode, reason = mode_and_reason(self.tandem_config, self.vllm_config)
        # A catch-up query is one more than the lag and must fit in a pass of the size the engine was profiled for.
        self._max_lag = min(self.tandem_config.max_lag_tokens, self.scheduler_config.max_num_batched_tokens - 1)
        self.tandem_stats = TandemStats()
        self._step: Step | None = None
        self._generators = GeneratorGuard(self.device)

        boundaries = check_models(self.tandem_config, self.model_config.model, self.model_config.tokenizer)
        self._junior_config = junior_vllm_config(self.tandem_config, self.vllm_config)
        senior, context = self.get_model(), self.vllm_config.compilation_config.static_forward_context
        before = set(context)
        self.junior, self.frozen_base = load_or_share(
            self.tandem_config, self.vllm_config, self._junior_config, senior, PREFIX
        )
        self._junior_layers = frozenset(set(context) - before)
        self._one_pass = None
        if self.frozen_base is not None and self.tandem_mode == "lock_step":
            self._one_pass = join_passes(self.vllm_config, senior, self.junior)
        if self.device.type != "cpu" and self.frozen_base is None:
            # The profiler subtracts this from what the KV cache may take; a CPU worker measures its process instead.
            self.model_memory_usage += memory_of(self.junior)
        self._vocab_size = self.model_config.get_vocab_size()
        self._common_vocab_size = min(self._vocab_size, self._junior_config.model_config.get_vocab_size())
        self._states = RequestStates(boundaries, self._vocab_size)

        self._senior_logits = senior.compute_logits
        senior.compute_logits = self._tandem_logits
        logger.info(
            "Tandem decoding: junior %s (%d attention layers), mode %s, %d word and %d sentence boundary ids",
            self.tandem_config.junior_model,
            len(self._junior_layers),
            reason,
            len(boundaries.word),
            len(boundaries.sentence),
        )

    def reload_weights(self, *args, **kwargs) -> None:
        if self.frozen_base is not None:
            self.frozen_base.refuse()
        super().reload_weights(*args, **kwargs)  # of the senior alone: `get_model` knows no other

    def initialize_kv_cache(self, kv_cache_config, *args, **kwargs) -> None:
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        refuse_cache_groups(self.kv_cache_config, self.tandem_mode)
        # vLLM gave the junior's layers caches, as they stand in the senior's forward context, and split the groups by
        # query heads; each model needs metadata builders of its own configuration.
        self._groups = tuple(self._attention_groups(model) for model in (JUNIOR, SENIOR))
        self.attn_groups[0] = [*self._groups[SENIOR], *self._groups[JUNIOR]]
        self._forwards = (
            SubBatchForward(self.junior, self._junior_config, self._groups[JUNIOR], self.device),
            SubBatchForward(
                self.model,
                self.vllm_config,
                self._groups[SENIOR],
                self.device,
                None if self.lora_config is None else self._map_adapters,
            ),
        )

    def _map_adapters(self, rows: np.ndarray, lengths: np.ndarray) -> None:
        """Tell the senior's layers which adapter each token of a pass takes, and each row of logits after it; vLLM has
        told them those of its own batch.

        Args:
            rows: (R,) rows of the batch, in the pass's order.
            lengths: (R,) tokens of each in the pass.
        """
        adapters, batch = self.input_batch.request_lora_mapping[rows], self.input_batch
        self._set_active_loras(
            tuple(adapters), tuple(adapters.repeat(lengths)), set(batch.lora_id_to_lora_request.values())
        )

    def _attention_groups(self, model: int) -> list[AttentionGroup]:
        """The attention groups of one model's layers, with metadata builders of that model's configuration."""
        config = self._junior_config if model == JUNIOR else self.vllm_config
        groups = []
        for group in self.attn_groups[0]:
            names = [name for name in group.layer_names if (name in self._junior_layers) == (model == JUNIOR)]
            if names:
                own = AttentionGroup(group.backend, names, group.kv_cache_spec, group.kv_cache_group_id)
                own.create_metadata_builders(config, self.device, self._kernel_block_sizes[0])
                groups.append(own)
        return groups

    def _update_states(self, scheduler_output):
        corrections = super()._update_states(scheduler_output)
        # The scheduler's news of requests: author schedules start, resume and end with them.
        for request_id in scheduler_output.finished_req_ids:
            self._states.remove(request_id)
        for new in scheduler_output.scheduled_new_reqs:
            extra = (new.sampling_params.extra_args or {}).get(CONFIG_KEY)
            settings = request_settings(self.tandem_config, extra, new.prompt_token_ids, new.sampling_params.seed)
            self._states.add(new.req_id, settings, new.prompt_token_ids, new.num_computed_tokens)
            self.tandem_stats.cached_tokens += new.num_computed_tokens
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, num_computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if request_id in cached.resumed_req_ids:
                self._states.restart(request_id, num_computed)
                self.tandem_stats.resumed_requests += 1
        return corrections

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        rows = self._states.rows(self.input_batch.req_ids)
        # vLLM marks the rows whose sample it will discard: prompts that are not finished in this step.
        samples = ~self.discard_request_mask.np[: len(rows)]
        schedules = self._states.schedules
        writers = writers_of(schedules.author[rows], samples)
        aligned = np.flatnonzero(schedules.aligned_before[rows] & samples)
        self._step = Step(num_scheduled_tokens, rows, samples, writers, aligned)
        return prepared

    def _build_attention_metadata(self, *args, **kwargs):
        if self._step is not None and self.tandem_mode == "lazy":
            return {}, None  # each model's pass builds its own (`sub_batch`)
        # One call for each model: within a call vLLM shares metadata between groups whose KV caches have one shape,
        # and backends put the number of query heads into them.
        both, prefix_lens = self.attn_groups, kwargs.pop("cascade_attn_prefix_lens", None)
        metadata, first = {}, 0
        try:
            for groups in (self._groups[SENIOR], self._groups[JUNIOR]):
                self.attn_groups = [groups]
                own_lens = prefix_lens and [prefix_lens[0][first : first + len(groups)]]
                built, common = super()._build_attention_metadata(*args, cascade_attn_prefix_lens=own_lens, **kwargs)
                metadata |= built
                first += len(groups)
        finally:
            self.attn_groups = both
        return metadata, common

    def _model_forward(self, input_ids=None, positions=None, **kwargs):
        if self._step is None:
            return super()._model_forward(input_ids=input_ids, positions=positions, **kwargs)
        self.tandem_stats.steps += 1
        forward = self._forward_lazy if self.tandem_mode == "lazy" else self._forward_lock_step
        return forward(self._step, input_ids, positions, kwargs)

    def _forward_lock_step(self, step: Step, input_ids, positions, kwargs) -> torch.Tensor:
        # Twice the tokens in one pass must fit into the memory that vLLM's profile has measured.
        if self._one_pass is not None and 2 * len(input_ids) <= self.scheduler_config.max_num_batched_tokens:
            with _without_graphs():
                senior_hidden, junior_hidden = self._one_pass.run(input_ids, positions)
            self.tandem_stats.joint_passes += 1
        else:
            senior_hidden = super()._model_forward(input_ids=input_ids, positions=positions, **kwargs)
            with _without_graphs():
                junior_hidden = self.junior(
                    input_ids=input_ids, positions=positions, intermediate_tensors=None, inputs_embeds=None
                )
        last = np.cumsum(step.num_scheduled) - 1
        step.rows_written = [np.flatnonzero(step.writers == model) for model in (JUNIOR, SENIOR)]
        step.last_hidden = [
            self._select(hidden, last[rows])
            for hidden, rows in zip((junior_hidden, senior_hidden), step.rows_written, strict=True)
        ]
        if len(step.aligned):
            step.both_hidden = (self._select(junior_hidden, last), self._select(senior_hidden, last))
        for model in (JUNIOR, SENIOR):
            self.tandem_stats.forwards[model] += 1
            self.tandem_stats.tokens[model] += int(last[-1]) + 1
        return senior_hidden

    def _forward_lazy(self, step: Step, input_ids, positions, kwargs) -> torch.Tensor:
        starts = self.input_batch.num_computed_tokens_cpu[: len(step.rows)].astype(np.int64)
        plan = plan_lazy(
            starts,
            starts + step.num_scheduled,
            step.samples,
            step.writers,
            self._states.computed[:, step.rows],
            self._states.schedules.has_one_author[step.rows],
            self._max_lag,
            self.scheduler_config.max_num_batched_tokens,
        )
        step.rows_written, step.last_hidden = [], []
        senior_hidden = None
        for model in (JUNIOR, SENIOR):
            run = plan.runs[model]
            hidden = None if run is None else self._forwards[model].run(self.input_batch, run)
            own = np.zeros(0, dtype=bool) if run is None else plan.writers[run.rows] == model
            step.rows_written.append(run.rows[own] if run is not None else np.zeros(0, dtype=np.int64))
            step.last_hidden.append(None if run is None else self._select(hidden, run.offsets[1:][own] - 1))
            if run is not None:
                self.tandem_stats.forwards[model] += 1
                self.tandem_stats.tokens[model] += int(run.offsets[-1])
            if model == SENIOR:
                senior_hidden = self._in_batch_layout(hidden, run, step.num_scheduled)
        self._states.computed[:, step.rows] = plan.computed
        step.held = plan.computed.min(axis=0)
        return senior_hidden

    def _in_batch_layout(
        self, hidden: torch.Tensor | None, run: ModelRun | None, num_scheduled: np.ndarray
    ) -> torch.Tensor:
        """The senior's hidden states where vLLM looks for them: (scheduled tokens, H).

        Only prompt log-probs read them; rows that the senior did not run are uninitialised.
        """
        total = int(num_scheduled.sum())
        layout = torch.empty(
            total, self.model_config.get_hidden_size(), dtype=self.model_config.dtype, device=self.device
        )
        if run is not None and self.num_prompt_logprobs:
            lengths = num_scheduled[run.rows]
            within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            target = np.repeat((np.cumsum(num_scheduled) - num_scheduled)[run.rows], lengths) + within
            source = np.repeat(run.offsets[1:] - lengths, lengths) + within
            layout[torch.from_numpy(target).to(self.device)] = hidden[torch.from_numpy(source).to(self.device)]
        return layout

    def _select(self, hidden: torch.Tensor, indices: np.ndarray) -> torch.Tensor | None:
        return hidden[torch.from_numpy(indices).to(self.device)] if len(indices) else None

    def _tandem_logits(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor | None:
        """``compute_logits`` of the engine: once per step each row's writer's logits, else (prompt log-probs, dummy
        runs) the senior's."""
        step = self._step
        if step is None or step.last_hidden is None:
            return self._senior_logits(hidden_states, *args, **kwargs)
        last_hidden, step.last_hidden = step.last_hidden, None
        parts = [None if hidden is None else self.junior.compute_logits(hidden) for hidden in last_hidden[:SENIOR]]
        if last_hidden[SENIOR] is None:
            parts.append(None)
        elif self.lora_config is None or self.tandem_mode == "lazy":
            if self.lora_config is not None:
                written = step.rows_written[SENIOR]
                self._map_adapters(written, np.ones_like(written))
            parts.append(self._senior_logits(last_hidden[SENIOR], *args, **kwargs))
        else:
            # vLLM maps adapters to all rows of the batch, in order. In lock-step the senior has run them all.
            rows = torch.from_numpy(step.rows_written[SENIOR]).to(self.device)
            parts.append(self._senior_logits(hidden_states, *args, **kwargs)[rows])
        for model, part in enumerate(parts):
            alone = part is not None and parts[1 - model] is None
            in_order = alone and np.array_equal(step.rows_written[model], np.arange(len(step.rows)))
            if in_order and part.shape[1] == self._common_vocab_size == self._vocab_size:
                return part
        return self._mixed(parts, step.rows_written, len(step.rows))

    def _mixed(self, parts: list[torch.Tensor | None], rows_of: list[np.ndarray], num_rows: int) -> torch.Tensor:
        """(num_rows, V) logits: ``parts[m]`` in the rows ``rows_of[m]``, zeros elsewhere.

        In single precision, which vLLM samples in: with a junior of another dtype, neither model's are rounded.
        """
        mixed = torch.zeros((num_rows, self._vocab_size), dtype=torch.float32, device=self.device)
        # An id that one model lacks could be sampled from the other and then fed to it.
        mixed[:, self._common_vocab_size :] = float("-inf")
        for rows, part in zip(rows_of, parts, strict=True):
            if part is not None:
                common = part[:, : self._common_vocab_size].float()
                mixed[torch.from_numpy(rows).to(self.device), : self._common_vocab_size] = common
        return mixed

    def _sample(self, logits, spec_decode_metadata):
        output = super()._sample(logits, spec_decode_metadata)
        step = self._step
        if step is not None and len(step.aligned):
            self._hand_words_over(step, output)
        return output

    def _hand_words_over(self, step: Step, output) -> None:
        """Under ``word_align='before'``: where a sample starts a word and the redraw names the other author, put that
        author's own sample in its place."""
        offered = output.sampled_token_ids[torch.from_numpy(step.aligned), 0].cpu().numpy()
        authors = self._states.schedules.offer(step.rows[step.aligned], offered)
        changed = authors != step.writers[step.aligned]
        switched = step.aligned[changed]
        if not len(switched):
            return
        step.writers[switched] = authors[changed]
        rows_of = [switched[step.writers[switched] == model] for model in (JUNIOR, SENIOR)]
        step.rows_written = rows_of
        step.last_hidden = [self._select(hidden, rows) for hidden, rows in zip(step.both_hidden, rows_of, strict=True)]
        # As vLLM calls it: a trainer may have replaced the attribute, to ban ids that the tokenizer lacks.
        logits = self.model.compute_logits(step.both_hidden[SENIOR])
        unchanged = np.setdiff1d(np.arange(len(step.rows)), switched).tolist()
        with self._generators.still(self.input_batch.generators, unchanged, len(step.rows)):
            again = super()._sample(logits, None)
        index = torch.from_numpy(switched).to(self.device)
        output.sampled_token_ids[index] = again.sampled_token_ids[index]
        if output.logprobs_tensors is not None:
            for kept, new in zip(output.logprobs_tensors[:3], again.logprobs_tensors[:3], strict=True):
                if len(kept):
                    kept[index] = new[index]

    def sample_tokens(self, grammar_output):
        step = self._step
        if step is None:
            return super().sample_tokens(grammar_output)
        try:
            with self._generators.still(
                self.input_batch.generators, np.flatnonzero(~step.samples).tolist(), len(step.rows)
            ):
                output = super().sample_tokens(grammar_output)
        finally:
            self._step = None
        sampled = np.array([len(tokens) == 1 for tokens in output.sampled_token_ids], dtype=bool)
        tokens = np.array([tokens[0] for tokens in output.sampled_token_ids if tokens], dtype=np.int64)
        if not np.array_equal(sampled, step.samples):
            raise RuntimeError(
                "vLLM sampled other rows than it announced; the author schedules would be wrong from here on"
            )
        self._states.schedules.advance(step.rows[sampled], tokens)
        # Plain attributes of vLLM's output, which pickle on the way to the scheduler.
        output.tandem_authors = step.writers.tolist()
        output.tandem_held = None if step.held is None else step.held.tolist()
        return output

    @torch.inference_mode()
    def _dummy_run(self, num_tokens: int, *args, **kwargs):
        # vLLM profiles memory and warms up with it: the junior's pass must be in what it measures.
        result = super()._dummy_run(num_tokens, *args, **kwargs)
        with set_forward_context(None, self._junior_config, num_tokens=num_tokens):
            self.junior(
                input_ids=self.input_ids.gpu[:num_tokens],
                positions=self.positions[:num_tokens],
                intermediate_tensors=None,
                inputs_embeds=None,
            )
        return result


@contextmanager
def _without_graphs():
    """The current forward context with CUDA graphs off: vLLM captures graphs of the senior only."""
    context = get_forward_context()
    with override_forward_context(dataclasses.replace(context, cudagraph_runtime_mode=CUDAGraphMode.NONE)):
        yield
