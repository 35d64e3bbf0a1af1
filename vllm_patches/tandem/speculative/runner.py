"""The V1 model runner of the speculative mode: a mixin over vLLM's GPU and CPU runners.

vLLM's speculative decoding schedules, batches, drafts and counts; its drafter is the junior (``proposer``). This mixin
follows each request's author schedule, samples for both models (``noise``), and decides which drafts stand
(``verify``).
"""

from __future__ import annotations

import numpy as np
import torch
from vllm.logger import init_logger
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from vllm_patches.tandem.config import CONFIG_KEY, TandemConfig, check_models, request_settings
from vllm_patches.tandem.engine_checks import mode_and_reason, refuse_cache_groups
from vllm_patches.tandem.junior import memory_of
from vllm_patches.tandem.request_states import RequestStates
from vllm_patches.tandem.schedule import JUNIOR, stream_key
from vllm_patches.tandem.speculative.log_probs import DraftLogProbs, empty_table, log_probs_of
from vllm_patches.tandem.speculative.min_tokens import MinTokens
from vllm_patches.tandem.speculative.proposer import TandemProposer
from vllm_patches.tandem.speculative.round import Round, SpeculativeStats, commit
from vllm_patches.tandem.speculative.verify import NOTHING, accept_drafts, draw, noise_key, signed64

logger = init_logger(f"vllm.{__name__}")

GREEDY_BELOW = 1e-5


class SpeculativeRunnerMixin:
    """Goes before ``GPUModelRunner`` or a subclass of it in the method resolution order."""

    def load_model(self, *args, **kwargs) -> None:
        self.tandem_config = TandemConfig.from_mapping(self.vllm_config.additional_config[CONFIG_KEY])
        # vLLM has made its drafter by now, and loads the draft model within `load_model`.
        self.drafter.__class__ = TandemProposer
        self.drafter.tandem = self
        super().load_model(*args, **kwargs)
        boundaries = check_models(self.tandem_config, self.model_config.model, self.model_config.tokenizer)
        self._states = RequestStates(boundaries, self.model_config.get_vocab_size())
        self._noise_keys: dict[str, int] = {}
        self._resumed: dict[str, int] = {}
        self._min_tokens = MinTokens()
        self._draft_log_probs = DraftLogProbs()
        self._junior_samples = False
        self.round: Round | None = None
        self.tandem_stats = SpeculativeStats()
        self._cost_ratio = memory_of(self.junior) / memory_of(self.get_model())

        senior = self.get_model()
        self._senior_logits = senior.compute_logits
        senior.compute_logits = self._logits_of_whoever_samples
        logger.info(
            "Tandem decoding: junior %s, mode %s, up to %d drafts, %d word and %d sentence boundary ids",
            self.tandem_config.junior_model,
            mode_and_reason(self.tandem_config, self.vllm_config)[1],
            self.num_spec_tokens,
            len(boundaries.word),
            len(boundaries.sentence),
        )

    @property
    def junior(self) -> torch.nn.Module:
        """The frozen partner."""
        return self.drafter.model

    def reload_weights(self, *args, **kwargs) -> None:
        if self.frozen_base is not None:
            self.frozen_base.refuse()
        super().reload_weights(*args, **kwargs)

    def initialize_kv_cache(self, kv_cache_config, *args, **kwargs) -> None:
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        refuse_cache_groups(self.kv_cache_config, "speculative")

    def _logits_of_whoever_samples(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor | None:
        """``compute_logits`` of the engine. The junior's go the same way, so that what a trainer puts around it, such
        as a mask of tokens never to be sampled, holds for tokens that no senior checks."""
        of = self.junior.compute_logits if self._junior_samples else self._senior_logits
        return of(hidden_states, *args, **kwargs)

    def _update_states(self, scheduler_output):
        corrections = super()._update_states(scheduler_output)
        for request_id in scheduler_output.finished_req_ids:
            self._states.remove(request_id)
            self._draft_log_probs.forget(request_id)
            self._min_tokens.forget(request_id)
            for kept in (self._noise_keys, self._resumed):
                kept.pop(request_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            self._add_request(new)
        cached = scheduler_output.scheduled_cached_reqs
        self.tandem_stats.resumed_requests += len(cached.resumed_req_ids)
        # Both models sample with noise of their own; vLLM winds generators back, which those of a CPU cannot do.
        self.input_batch.generators.clear()
        return corrections

    def _add_request(self, new) -> None:
        sampling = new.sampling_params
        extra = (sampling.extra_args or {}).get(CONFIG_KEY)
        settings = request_settings(self.tandem_config, extra, new.prompt_token_ids, sampling.seed)
        self._states.add(new.req_id, settings, new.prompt_token_ids, new.num_computed_tokens)
        stream = stream_key(settings.params.seed, settings.params.request)
        self._noise_keys[new.req_id] = signed64(noise_key(stream, sampling.seed, new.req_id))
        self._resumed[new.req_id] = settings.resume_len
        self._min_tokens.add(new.req_id, sampling.min_tokens, sampling.all_stop_token_ids)
        self.tandem_stats.cached_tokens += new.num_computed_tokens

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        prepared = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        batch = self.input_batch
        ids = batch.req_ids
        self.round = Round.of(
            self._states.schedules,
            self._states.rows(ids),
            ~self.discard_request_mask.np[: len(ids)],
            ids,
            np.asarray(num_scheduled_tokens, dtype=np.int64),
            scheduler_output.scheduled_spec_decode_tokens,
        )
        num_output = batch.num_tokens_no_spec[: len(ids)].astype(np.int64) - batch.num_prompt_tokens[: len(ids)]
        resumed = np.fromiter((self._resumed[i] for i in ids), dtype=np.int64, count=len(ids))
        keys = np.fromiter((self._noise_keys[i] for i in ids), dtype=np.int64, count=len(ids))
        host = np.stack([keys, resumed, num_output, self.round.query_starts, self.round.num_drafts])
        self._keys, self._resumed_len, self._written, self.query_starts, self._num_drafts = self._to_device(host)
        self._early_stops = self._min_tokens.early(ids, num_output, self.device)
        return prepared

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)

    def _input_fits_in_drafter(self, common_attn_metadata) -> bool:
        """Always: stock vLLM stops drafting for all requests when the longest nears the length limit, and a request
        whose next token is the junior's would stand still. Drafts beyond the limit are cut by the scheduler."""
        return common_attn_metadata is not None

    def _sample(self, logits, spec_decode_metadata) -> SamplerOutput:
        this, ids = self.round, self.input_batch.req_ids
        num_requests, width = this.authors.shape
        requests, positions = this.verified()
        requests, positions, rows = self._to_device(
            np.stack([requests, positions, this.logit_starts[requests] + positions])
        )
        raw = logits[rows]
        own = torch.full((num_requests, width), NOTHING, dtype=torch.int64, device=self.device)
        own[requests, positions], processed = self._draw(raw, requests, self._written[requests] + positions)
        drafts, authors = self._to_device(this.drafts), self._to_device(this.authors)
        emitted, self._counts = accept_drafts(drafts, self._num_drafts, authors, own)
        # At width 1 vLLM takes every row for a sampled token.
        emitted = torch.nn.functional.pad(emitted, (0, self.num_spec_tokens + 1 - width), value=NOTHING)

        log_probs = None
        number = self.input_batch.sampling_metadata.max_num_logprobs
        if number is not None:
            mode, width = self.model_config.logprobs_mode, emitted.shape[1]
            log_probs = empty_table(num_requests * width, number + 1, self.device)
            target = requests * width + positions
            if len(requests):  # the compiled rank kernel takes no empty batch
                reported = processed if mode.startswith("processed") else raw
                reported_own = log_probs_of(reported, own[requests, positions], number, mode)
                for whole, part in zip(log_probs[:3], reported_own[:3], strict=True):
                    whole[target] = part.to(whole.dtype)
            most = this.drafts.shape[1]
            if most:
                by_junior = (this.authors[:, :-1] == JUNIOR) & (np.arange(most) < this.num_drafts[:, None])
                requests, positions = self._to_device(np.stack(np.nonzero(by_junior)))
                drafted = self._draft_log_probs.latest(ids, most, number + 1, self.device)
                for whole, part in zip(log_probs[:3], drafted[:3], strict=True):
                    whole[requests * width + positions] = part[requests, positions]
        self._draft_log_probs.start(ids)
        return SamplerOutput(sampled_token_ids=emitted.int(), logprobs_tensors=log_probs)

    def _draw(
        self, logits: torch.Tensor, requests: torch.Tensor, written: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(M,) samples of ``logits`` (M, V) under each request's own parameters, and the logits (M, V) of the law that
        they were drawn from.

        Args:
            logits: raw; left as they are.
            requests: (M,) batch rows.
            written: (M,) tokens that the request has before this one.
        """
        metadata = self.input_batch.sampling_metadata
        logits = logits.float().clone()
        if not len(requests):  # all turns are the junior's, and vLLM's top-k takes no empty batch
            return requests, logits
        if self._early_stops is not None:
            self._early_stops.exclude(logits, requests, written)
        greedy = None if metadata.all_random else logits.argmax(dim=-1)
        if metadata.all_greedy:
            return greedy, logits
        temperature = metadata.temperature[requests]
        cold = temperature < GREEDY_BELOW
        logits.div_(torch.where(cold, 1.0, temperature)[:, None])
        top_k, top_p = (None if values is None else values[requests] for values in (metadata.top_k, metadata.top_p))
        logits = apply_top_k_top_p(logits, top_k, top_p)
        sampled = draw(logits, self._keys[requests], self._resumed_len[requests] + written)
        return sampled if greedy is None else torch.where(cold, greedy, sampled), logits

    def first_unread(self) -> torch.Tensor:
        """(N,) where in its input a request's junior resumes: the token before the newest, or the start of a prompt."""
        return torch.where(self._num_drafts > 0, self._counts - 1, 0)

    def draft(self, hidden_states: torch.Tensor, ahead: int) -> torch.Tensor:
        """(N,) the junior's samples for the position ``ahead`` of the first that is not emitted yet."""
        self._junior_samples = True
        try:
            logits = self.get_model().compute_logits(hidden_states)
        finally:
            self._junior_samples = False
        every = torch.arange(len(logits), device=self.device)
        tokens, processed = self._draw(logits, every, self._written + self._counts + ahead)
        number, mode = self.input_batch.sampling_metadata.max_num_logprobs, self.model_config.logprobs_mode
        if number is not None:
            reported = processed if mode.startswith("processed") else logits
            self._draft_log_probs.add(log_probs_of(reported, tokens, number, mode))
        return tokens

    def sample_tokens(self, grammar_output):
        this = self.round
        if this is None or self.execute_model_state is None:
            return super().sample_tokens(grammar_output)
        try:
            output = super().sample_tokens(grammar_output)
        finally:
            self.round = None
        emitted = output.sampled_token_ids
        commit(self._states.schedules, this.rows, this.ahead, emitted)
        output.tandem_authors = [row[: len(tokens)] for row, tokens in zip(this.authors.tolist(), emitted, strict=True)]
        output.tandem_outcome = this.outcome(emitted)
        output.tandem_cost_ratio = self._cost_ratio
        self.tandem_stats.add(output.tandem_outcome, self._cost_ratio)
        return output
