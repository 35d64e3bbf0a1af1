"""The junior as a speculator of vLLM's V2 model runner, which has none for draft models of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import set_forward_context
from vllm.v1.worker.gpu.attn_utils import build_attn_metadata
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

from vllm_patches.tandem.config import CONFIG_KEY, TandemConfig
from vllm_patches.tandem.junior import PREFIX, junior_vllm_config, load_or_share


class JuniorSpeculator(DraftModelSpeculator):
    """Reads what the junior lacks in one pass and drafts a token a pass; the runner, ``tandem``, samples.

    vLLM's own speculators for V2 read a token one position early, beside the senior's hidden state of the position
    before; the junior reads each token at its own place. It runs without CUDA graphs.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device):
        super().__init__(vllm_config, device)
        self.speculative_config.verify_equal_vocab_size_if_draft_model()
        config = TandemConfig.from_mapping(vllm_config.additional_config[CONFIG_KEY])
        self.junior_config = junior_vllm_config(config, vllm_config)
        self.tandem: Any = None

    @property
    def attn_vllm_config(self) -> VllmConfig:
        """Of the junior's own attention metadata builders."""
        return self.junior_config

    def load_draft_model(self, target_model: nn.Module, target_attn_layer_names: set[str]) -> nn.Module:
        """The junior, with its own load format: a trainer's senior is loaded as ``dummy``."""
        config = TandemConfig.from_mapping(self.vllm_config.additional_config[CONFIG_KEY])
        return load_or_share(config, self.vllm_config, self.junior_config, target_model, PREFIX)[0]

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """The junior has no graphs."""

    def capture(self) -> None:
        """The junior has no graphs."""

    @torch.inference_mode()
    def propose(
        self,
        input_batch: InputBatch,
        attn_metadata,
        slot_mappings,
        last_hidden_states,
        aux_hidden_states,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        *args,
        dummy_run: bool = False,
        **kwargs,
    ) -> torch.Tensor:
        """(N, K) drafts, of which the first ``tandem.drafts_to_make`` count.

        Args:
            input_batch: the step that the senior has run.
            num_sampled: (N,) tokens that each request emitted in it.
            last_sampled: (slots, 1) newest token of each request.
        """
        drafts = self.draft_tokens[: input_batch.num_reqs]
        if dummy_run:
            hidden = self._run(input_batch.input_ids, input_batch.positions, None)
            self.model.compute_logits(hidden[: input_batch.num_reqs])
            return drafts
        slots = input_batch.idx_mapping
        hidden, positions, seq_lens = self._read_what_is_missing(input_batch, num_sampled, last_sampled[:, 0])
        for ahead in range(self.tandem.drafts_to_make):
            if ahead:
                positions = (positions + 1).clamp_(max=self.max_model_len - 1)
                seq_lens = (positions + 1).int()
                every = np.arange(len(slots))
                metadata = self._metadata(input_batch, every, every + 1, positions, seq_lens, ahead)
                hidden = self._run(drafts[:, ahead - 1].int(), positions, metadata)
            drafts[:, ahead] = self.tandem.draft(hidden, input_batch, positions)
        return drafts

    def _read_what_is_missing(
        self, batch: InputBatch, num_emitted: torch.Tensor, newest: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The first pass: (N, H) hidden states from which each request's first draft is sampled, the positions (N,) of
        the tokens they stand at, and the lengths (N,) that the pass covered.

        How many tokens a request has to read is known to the host, what was emitted to the device alone. So where a
        prompt ends, a place is kept for the token that may have followed it; where none did, what stands there is
        written over before anybody reads it, since the next token takes that position.
        """
        inputs = self.tandem.round.junior_inputs()
        flat = self._to_device(np.stack([inputs.requests, inputs.within, inputs.newest]))
        requests, within, is_newest = flat[0], flat[1], flat[2].bool()
        had_drafts, starts, ends = self._to_device(
            np.stack([self.tandem.round.num_drafts > 0, batch.query_start_loc_np[: batch.num_reqs], inputs.ends])
        )
        shift = torch.where(had_drafts.bool(), num_emitted - 1, 0)
        offsets = within + shift[requests]
        positions = batch.positions[starts][requests] + offsets
        sources = (starts[requests] + offsets).clamp_(max=len(batch.input_ids) - 1)
        tokens = torch.where(is_newest, newest[batch.idx_mapping][requests], batch.input_ids[sources])
        seq_lens = (positions[ends - 1] + 1).int()
        metadata = self._metadata(batch, inputs.requests, inputs.ends, positions, seq_lens, 1)
        hidden = self._run(tokens.int(), positions, metadata)
        silent = self._to_device(self.tandem.round.samples).bool() & (num_emitted == 0)
        last = ends - 1 - silent.long()
        return hidden[last], positions[last], seq_lens

    def _metadata(
        self,
        batch: InputBatch,
        requests: np.ndarray,
        ends: np.ndarray,
        positions: torch.Tensor,
        seq_lens: torch.Tensor,
        ahead: int,
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Attention metadata and slots, by layer, of a pass over T tokens.

        Args:
            requests: (T,) batch row of each token; ``ends`` (N,) where each row ends.
            positions: (T,); ``seq_lens`` (N,) int32.
            ahead: by how much a row may reach beyond what the senior has run.
        """
        num_reqs, num_tokens = batch.num_reqs, len(requests)
        tables = tuple(table[:num_reqs] for table in self.block_tables.input_block_tables)
        size = self.block_tables.kernel_block_sizes[0]
        blocks = tables[0][self._to_device(requests), positions // size].long()
        slots = blocks * size + positions % size
        starts = np.concatenate([[0], ends]).astype(np.int32)
        upper = (batch.seq_lens_cpu_upper_bound[:num_reqs] + ahead).clamp_(max=self.max_model_len)
        metadata = build_attn_metadata(
            attn_groups=self.attn_groups,
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            query_start_loc_gpu=self._to_device(starts),
            query_start_loc_cpu=torch.from_numpy(starts),
            max_query_len=int(np.diff(starts).max()),
            seq_lens=seq_lens,
            max_seq_len=int(upper.max()),
            block_tables=tables,
            slot_mappings=slots[None],
            kv_cache_config=self.kv_cache_config,
            seq_lens_cpu_upper_bound=upper,
            positions=positions,
        )
        return metadata, dict.fromkeys(self.draft_attn_layer_names, slots)

    def _run(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attention: tuple[dict, dict] | None
    ) -> torch.Tensor:
        metadata, slots = attention or (None, None)
        with set_forward_context(metadata, self.junior_config, num_tokens=len(input_ids), slot_mapping=slots):
            return self.model(input_ids=input_ids, positions=positions, intermediate_tensors=None, inputs_embeds=None)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)
