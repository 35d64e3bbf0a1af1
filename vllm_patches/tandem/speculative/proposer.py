"""The junior as vLLM's draft model: it samples its own law with the shared noise, and reads no token twice."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from vllm.v1.spec_decode.draft_model import DraftModelProposer

from vllm_patches.tandem.junior import load_or_share
from vllm_patches.tandem.sub_batch import HOST_COPIES


class TandemProposer(DraftModelProposer):
    """``DraftModelProposer`` of a tandem runner, which sets ``tandem`` to itself before the models load."""

    def _get_model(self) -> nn.Module:
        """As the stock proposer's, with the junior's own load format: stock drops it, and a trainer's senior is loaded
        as ``dummy``, which would leave the junior with noise for weights."""
        config = copy.copy(self._create_draft_vllm_config())
        config.load_config = copy.copy(config.load_config)
        config.load_config.load_format = self.tandem.tandem_config.junior_load_format
        runner = self.tandem
        model, runner.frozen_base = load_or_share(
            runner.tandem_config, runner.vllm_config, config, runner.get_model(), "draft_model"
        )
        return model

    def propose(self, *args, num_rejected_tokens_gpu=None, **kwargs) -> torch.Tensor:
        """(N, K) drafts. ``set_inputs_first_pass`` leaves rejected tokens out, so none are subtracted after it."""
        self._num_drafted = 0
        return super().propose(*args, num_rejected_tokens_gpu=None, **kwargs)

    def set_inputs_first_pass(
        self,
        target_token_ids: torch.Tensor,
        next_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        token_indices_to_sample: torch.Tensor | None,
        cad,
        num_rejected_tokens_gpu: torch.Tensor | None,
    ):
        """The junior's first pass over the tokens that it lacks; stock vLLM reads all K + 2 of a round again.

        How many tokens that are is known to the host; which ones, where drafts were rejected, to the device alone.
        """
        inputs, device = self.tandem.round.junior_inputs(), self.device
        num_tokens = len(inputs.requests)
        flat = torch.from_numpy(np.stack([inputs.requests, inputs.within, inputs.newest])).to(device, non_blocking=True)
        requests, within, newest = flat[0], flat[1], flat[2].bool()
        starts, shift = self.tandem.query_starts, self.tandem.first_unread()
        offsets = within + shift[requests]
        positions = target_positions[starts][requests] + offsets
        sources = (starts[requests] + offsets).clamp_(max=len(target_token_ids) - 1)
        self.input_ids[:num_tokens] = torch.where(newest, next_token_ids[requests], target_token_ids[sources])
        self.positions[:num_tokens] = positions

        ends = torch.from_numpy(inputs.ends).to(device, non_blocking=True)
        query_start_loc_cpu = torch.from_numpy(np.concatenate([[0], inputs.ends]).astype(np.int32))
        blocks = cad.block_table_tensor[requests, positions // self.block_size].long()
        upper = cad.seq_lens_cpu_upper_bound
        metadata = cad.replace(
            query_start_loc=torch.nn.functional.pad(ends, (1, 0)).int(),
            query_start_loc_cpu=query_start_loc_cpu,
            seq_lens=(positions[ends - 1] + 1).int(),
            num_actual_tokens=num_tokens,
            max_query_len=int(np.diff(inputs.ends, prepend=0).max()),
            max_seq_len=min(cad.max_seq_len + 1, self.max_model_len),
            slot_mapping=blocks * self.block_size + positions % self.block_size,
            seq_lens_cpu_upper_bound=None if upper is None else upper + 1,
            _num_computed_tokens_cache=None,
            _token_to_req_indices_cache=None,
            **dict.fromkeys(HOST_COPIES),
        )
        return num_tokens, (ends - 1).int(), metadata

    def _sample_draft_tokens(self, hidden_states: torch.Tensor, sampling_metadata):
        tokens = self.tandem.draft(hidden_states, self._num_drafted)
        self._num_drafted += 1
        return tokens, None
