"""The V2 model runner of the speculative mode: a mixin over vLLM's GPU runner and its CPU subclass.

The same decoding as ``speculative.runner`` on V1, token for token, with what V1 knows on the host computed on the
device: V2 keeps the drafts there. Authors leave the device in columns behind the emitted tokens.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from vllm.logger import init_logger
from vllm.v1.outputs import AsyncModelRunnerOutput, DraftTokenIds, LogprobsTensors, ModelRunnerOutput
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS

from vllm_patches.tandem.config import CONFIG_KEY, TandemConfig, check_models, request_settings
from vllm_patches.tandem.engine_checks import mode_and_reason, refuse_cache_groups
from vllm_patches.tandem.junior import memory_of
from vllm_patches.tandem.schedule import JUNIOR, stream_key
from vllm_patches.tandem.speculative.log_probs import DraftLogProbs, empty_table, log_probs_of
from vllm_patches.tandem.speculative.noise import draw, noise_key, signed64
from vllm_patches.tandem.speculative.round import JuniorInputs, outcome_of
from vllm_patches.tandem.speculative.stats import SpeculativeStats
from vllm_patches.tandem.speculative.v2.device_schedule import DeviceSchedules
from vllm_patches.tandem.speculative.verify import settle

logger = init_logger(f"vllm.{__name__}")


@dataclasses.dataclass
class HostRound:
    """What the host knows of a step of N requests before anything has run.

    Attributes:
        samples: (N,) whether the request emits in this step, or is an unfinished prompt.
        num_drafts: (N,) drafts of the step that count.
        query_lengths: (N,) input tokens up to the last whose successor is drafted or emitted.
        past_prompt: (N,) whether drafts lie behind the input, made or padded: then the prompt's log-probs are complete.
    """

    samples: np.ndarray
    num_drafts: np.ndarray
    query_lengths: np.ndarray
    past_prompt: np.ndarray

    def junior_inputs(self) -> JuniorInputs:
        """As ``Round.junior_inputs``, with a place for the newest token wherever one may have been emitted."""
        ends_in_newest = (self.num_drafts > 0) | self.samples
        return JuniorInputs.of(np.where(self.num_drafts > 0, 2, self.query_lengths + self.samples), ends_in_newest)


class SpeculativeRunnerMixin:
    """Goes before V2's ``GPUModelRunner`` or a subclass of it in the method resolution order."""

    frozen_base = None  # the junior has weights of its own here

    def load_model(self, *args, **kwargs) -> None:
        self.tandem_config = TandemConfig.from_mapping(self.vllm_config.additional_config[CONFIG_KEY])
        self.speculator.tandem = self
        super().load_model(*args, **kwargs)
        boundaries = check_models(self.tandem_config, self.model_config.model, self.model_config.tokenizer)
        self._schedules = DeviceSchedules(
            {"word": boundaries.word, "sentence": boundaries.sentence}, self.vocab_size, self.max_num_reqs, self.device
        )
        # By slot: key of the noise, and what to add to a token's place in the text for its successor's in the response.
        self._noise = torch.zeros((2, self.max_num_reqs), dtype=torch.int64, device=self.device)
        self._drafted = np.zeros(self.max_num_reqs, dtype=np.int64)
        self._draft_log_probs = DraftLogProbs()
        self._junior_samples = False
        self.round: HostRound | None = None
        self.drafts_to_make = self.num_speculative_steps
        self.tandem_stats = SpeculativeStats()
        self.cost_ratio = memory_of(self.junior) / memory_of(self.model)

        self._senior_logits = self.model.compute_logits
        self.model.compute_logits = self._logits_of_whoever_samples
        logger.info(
            "Tandem decoding on the V2 runner: junior %s, mode %s, up to %d drafts",
            self.tandem_config.junior_model,
            mode_and_reason(self.tandem_config, self.vllm_config)[1],
            self.num_speculative_steps,
        )

    @property
    def junior(self) -> torch.nn.Module:
        """The frozen partner."""
        return self.speculator.model

    def initialize_kv_cache(self, kv_cache_config) -> None:
        super().initialize_kv_cache(kv_cache_config)
        refuse_cache_groups(self.kv_cache_config, "speculative")

    def _logits_of_whoever_samples(self, hidden_states: torch.Tensor, *args, **kwargs) -> torch.Tensor | None:
        """``compute_logits`` of the engine, by which the junior's go too: what a trainer puts around it, such as a mask
        of tokens never to be sampled, holds for tokens that no senior checks."""
        of = self.junior.compute_logits if self._junior_samples else self._senior_logits
        return of(hidden_states, *args, **kwargs)

    def finish_requests(self, scheduler_output) -> None:
        super().finish_requests(scheduler_output)
        for request_id in scheduler_output.finished_req_ids:
            self._draft_log_probs.forget(request_id)

    def add_requests(self, scheduler_output) -> None:
        """As V2's, which hands over a preempted request as a new one, with what it had emitted behind the prompt."""
        super().add_requests(scheduler_output)
        added = scheduler_output.scheduled_new_reqs
        if not added:
            return
        slots, requests, noise = [], [], []
        for new in added:
            slot = self.req_states.req_id_to_index[new.req_id]
            prompt, sampling = new.prompt_token_ids, new.sampling_params
            extra = (sampling.extra_args or {}).get(CONFIG_KEY)
            settings = request_settings(self.tandem_config, extra, prompt, sampling.seed)
            begins = len(prompt) - settings.resume_len
            stream = stream_key(settings.params.seed, settings.params.request)
            slots.append(slot)
            requests.append((settings.params, list(new.prefill_token_ids[begins:])))
            noise.append((signed64(noise_key(stream, sampling.seed, new.req_id)), 1 - begins))
            self.tandem_stats.cached_tokens += new.num_computed_tokens
            self.tandem_stats.resumed_requests += len(new.prefill_token_ids) > len(prompt)
        self._drafted[slots] = 0
        self._schedules.start(slots, requests)
        self._noise[:, self._to_device(np.array(slots))] = self._to_device(np.array(noise).T)

    def prepare_inputs(self, scheduler_output, *args, **kwargs) -> InputBatch:
        batch = super().prepare_inputs(scheduler_output, *args, **kwargs)
        wanted = scheduler_output.num_spec_tokens_to_schedule or self.num_speculative_steps
        self.drafts_to_make = min(wanted, self.num_speculative_steps)
        samples = batch.num_computed_tokens_np + batch.num_scheduled_tokens >= batch.prefill_len_np
        scheduled = batch.num_draft_tokens_per_req
        if scheduled is None:
            scheduled = np.zeros(batch.num_reqs, dtype=np.int64)
        # vLLM pads a request that it takes up again with drafts that nobody made.
        num_drafts = np.where(samples, np.minimum(scheduled, self._drafted[batch.idx_mapping_np]), 0)
        lengths = batch.num_scheduled_tokens - np.where(num_drafts > 0, 0, scheduled)
        self.round = HostRound(samples, num_drafts, lengths, past_prompt=scheduled > 0)
        self._drafted[batch.idx_mapping_np] = np.where(samples, self.drafts_to_make, 0)
        return batch

    def sample(
        self, hidden_states: torch.Tensor, input_batch: InputBatch, grammar_output
    ) -> tuple[SamplerOutput, torch.Tensor, torch.Tensor]:
        """In place of V2's sampling and its rejection sampler: the senior's own samples at every position, and what
        stands of the drafts."""
        batch, this = input_batch, self.round
        most = 0 if batch.num_draft_tokens_per_req is None else int(batch.num_draft_tokens_per_req.max())
        logits = self.model.compute_logits(hidden_states[batch.logits_indices])
        flat, processed = self._draw(
            logits, batch, batch.expanded_idx_mapping, batch.positions[batch.logits_indices], batch.expanded_local_pos
        )
        # (N, most + 1) where in the logits each position lies; what lies behind a request's last is not read.
        places = batch.cu_num_logits[:-1, None] + torch.arange(most + 1, device=self.device)
        places.clamp_(max=len(flat) - 1)
        own = flat[places]

        samples, num_drafts = self._to_device(np.stack([this.samples, this.num_drafts]).astype(np.int64))
        drafts = self.req_states.draft_tokens[batch.idx_mapping, :most]
        ahead = self._schedules.ahead(self._schedules.of(batch.idx_mapping), drafts)
        authors = torch.stack([state.author for state in ahead], dim=1)
        authors = torch.where(samples[:, None] > 0, authors, JUNIOR)
        emitted, counts = settle(drafts, num_drafts, authors, own)
        self._schedules.commit(batch.idx_mapping, ahead, emitted, counts)

        log_probs = self._log_probs(batch, processed, logits, flat, places, authors, num_drafts)
        self._draft_log_probs.start(batch.req_ids)
        counts = counts.int()
        num_logits = batch.cu_num_logits[1:] - batch.cu_num_logits[:-1]
        rejected = torch.where(samples > 0, num_logits - counts, 0).int()
        output = SamplerOutput(
            sampled_token_ids=torch.cat([emitted, authors, drafts], dim=1),
            logprobs_tensors=log_probs,
            num_nans=None,
            num_sampled=counts,
            num_rejected=rejected,
        )
        return output, counts, rejected

    def _draw(
        self, logits: torch.Tensor, batch: InputBatch, slots: torch.Tensor, positions: torch.Tensor, local: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(M,) samples of ``logits`` (M, V) under each request's own parameters, and the logits of the law that they
        were drawn from.

        Args:
            slots: (M,) request slots.
            positions: (M,) of the tokens that the samples follow; ``local`` (M,) counts them within a request.
        """
        states = self.sampler.sampling_states
        logits = self.sampler.apply_sampling_params(
            logits,
            slots,
            batch.idx_mapping,
            batch.idx_mapping_np,
            positions,
            batch.input_ids[:1].expand(len(slots)),  # read by penalties alone, which are refused
            local,
        )
        cold = states.temperature.np[batch.idx_mapping_np] == 0
        greedy = logits.argmax(dim=-1) if cold.any() else None
        if cold.all():
            return greedy, logits
        keys, origins = self._noise[:, slots]
        sampled = draw(logits.float(), keys, origins + positions)
        if greedy is not None:
            sampled = torch.where(states.temperature.gpu[slots] == 0, greedy, sampled)
        return sampled, logits

    def draft(self, hidden_states: torch.Tensor, batch: InputBatch, positions: torch.Tensor) -> torch.Tensor:
        """(N,) the junior's samples after the tokens at ``positions`` (N,), from hidden states (N, H)."""
        self._junior_samples = True
        try:
            logits = self.model.compute_logits(hidden_states)
        finally:
            self._junior_samples = False
        first = torch.zeros(batch.num_reqs, dtype=torch.int32, device=self.device)
        tokens, processed = self._draw(logits, batch, batch.idx_mapping, positions, first)
        number, mode = self._num_log_probs(batch), self.model_config.logprobs_mode
        if number is not None:
            reported = processed if mode.startswith("processed") else logits
            self._draft_log_probs.add(log_probs_of(reported, tokens, number, mode))
        return tokens

    def _num_log_probs(self, batch: InputBatch) -> int | None:
        number = self.sampler.sampling_states.max_num_logprobs(batch.idx_mapping_np)
        return None if number == NO_LOGPROBS else number

    def _log_probs(
        self,
        batch: InputBatch,
        processed: torch.Tensor,
        logits: torch.Tensor,
        own: torch.Tensor,
        places: torch.Tensor,
        authors: torch.Tensor,
        num_drafts: torch.Tensor,
    ) -> LogprobsTensors | None:
        """The writer's, in rows ``request * (K + 1) + position``; None where no request asks for any."""
        number, mode = self._num_log_probs(batch), self.model_config.logprobs_mode
        if number is None:
            return None
        num_reqs, width = authors.shape
        kept = log_probs_of(processed if mode.startswith("processed") else logits, own, number, mode)
        table = empty_table(num_reqs * width, number + 1, self.device)
        for whole, part in zip(table[:3], kept[:3], strict=True):
            whole.copy_(part[places.flatten()])
        if width > 1:
            junior = (authors[:, :-1] == JUNIOR) & (torch.arange(width - 1, device=self.device) < num_drafts[:, None])
            drafted = self._draft_log_probs.latest(batch.req_ids, width - 1, number + 1, self.device)
            for whole, part in zip(table[:3], drafted[:3], strict=True):
                rows = whole.view(num_reqs, width, *whole.shape[1:])[:, :-1]
                rows.copy_(torch.where(junior.view(*junior.shape, *[1] * (part.ndim - 2)), part, rows))
        starts = (np.arange(num_reqs + 1) * width).tolist()
        return table._replace(cu_num_generated_tokens=starts)

    def sample_tokens(self, grammar_output):
        this = self.round
        output = super().sample_tokens(grammar_output)
        self.round = None
        return output if this is None or output is None else TandemOutput(output, this, self)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        drafts = super().take_draft_token_ids()
        if drafts is None:
            return None
        return DraftTokenIds(drafts.req_ids, [row[: self.drafts_to_make] for row in drafts.draft_token_ids])

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)


class TandemOutput(AsyncModelRunnerOutput):
    """V2's output of a step, with each token's author and the counts of the round.

    Args:
        output: vLLM's, whose token ids have the authors (N, K + 1) and the drafts (N, K) in the columns behind.
    """

    def __init__(self, output, this: HostRound, runner: SpeculativeRunnerMixin):
        self._output, self._round, self._runner = output, this, runner

    def get_output(self) -> ModelRunnerOutput:
        result = self._output.get_output()
        columns = self._output.sampled_token_ids
        width = (columns.shape[1] + 1) // 3
        authors, drafts = columns[:, width : 2 * width], columns[:, 2 * width :]
        emitted, this = result.sampled_token_ids, self._round
        result.tandem_authors = [row[: len(ids)] for row, ids in zip(authors.tolist(), emitted, strict=True)]
        result.tandem_outcome = outcome_of(this.samples, this.num_drafts, drafts, authors, emitted)
        result.tandem_cost_ratio = self._runner.cost_ratio
        # What emitted nothing runs its prompt's last token again, and V2 takes the drafts behind it for prompt.
        for row in np.flatnonzero(this.past_prompt):
            result.prompt_logprobs_dict.pop(result.req_ids[row], None)
        self._runner.tandem_stats.add(result.tandem_outcome, self._runner.cost_ratio)
        return result
