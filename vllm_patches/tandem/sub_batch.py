"""One model's forward pass over its own token ranges of vLLM's persistent batch, with attention metadata of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.utils import AttentionGroup

from vllm_patches.tandem.plan import ModelRun

# Fields that spare backends a copy from the device, where this vLLM has them: 0.31 dropped them.
HOST_COPIES = {"_seq_lens_cpu", "_num_computed_tokens_cpu"} & {
    field.name for field in dataclasses.fields(CommonAttentionMetadata)
}


class SubBatchForward:
    """Runs one of the two models.

    Args:
        model: the senior or the junior.
        vllm_config: the model's own configuration.
        groups: the model's attention groups, with metadata builders.
        map_adapters: called before each pass with its batch rows and each row's number of tokens, where the model has
            adapters.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        vllm_config: VllmConfig,
        groups: list[AttentionGroup],
        device: torch.device,
        map_adapters: Callable[[np.ndarray, np.ndarray], None] | None = None,
    ):
        self._model, self._vllm_config, self._groups, self._device = model, vllm_config, groups, device
        self._map_adapters = map_adapters

    def run(self, batch: InputBatch, run: ModelRun) -> torch.Tensor:
        """Hidden states (sum of lengths, H) of the run's tokens, in the run's order."""
        passes = [self._run_once(batch, piece) for piece in run.split()]
        return passes[0] if len(passes) == 1 else torch.cat(passes)

    def _run_once(self, batch: InputBatch, run: ModelRun) -> torch.Tensor:
        lengths, offsets = run.lengths, run.offsets
        num_tokens = int(offsets[-1])
        if self._map_adapters is not None:
            self._map_adapters(run.rows, lengths)
        rows = np.repeat(run.rows, lengths)
        positions = np.arange(num_tokens) - np.repeat(offsets[:-1] - run.starts, lengths)
        block_table = batch.block_table[0]
        blocks, block_size = block_table.get_numpy_array(), block_table.block_size
        slots = blocks[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size

        positions_device = self._to_device(positions, torch.int64)
        slot_mapping = self._to_device(slots, torch.int64)
        query_start_loc = torch.from_numpy(offsets.astype(np.int32))
        seq_lens = torch.from_numpy(run.ends.astype(np.int32))
        common = CommonAttentionMetadata(
            query_start_loc=query_start_loc.to(self._device),
            query_start_loc_cpu=query_start_loc,
            seq_lens=seq_lens.to(self._device),
            seq_lens_cpu_upper_bound=seq_lens,
            num_reqs=len(run.rows),
            num_actual_tokens=num_tokens,
            max_query_len=int(lengths.max()),
            max_seq_len=int(run.ends.max()),
            block_table_tensor=self._to_device(blocks[run.rows], torch.int32),
            slot_mapping=slot_mapping,
            causal=True,
            positions=positions_device,
            is_prefilling=torch.from_numpy(lengths > 1),
            **_host_copies(seq_lens, run.starts),
        )
        metadata, slot_mappings = {}, {}
        for group in self._groups:
            built = group.get_metadata_builder().build(common_prefix_len=0, common_attn_metadata=common)
            for name in group.layer_names:
                metadata[name], slot_mappings[name] = built, slot_mapping
        with set_forward_context(metadata, self._vllm_config, num_tokens=num_tokens, slot_mapping=slot_mappings):
            return self._model(
                input_ids=self._to_device(batch.token_ids_cpu[rows, positions], torch.int32),
                positions=positions_device,
                intermediate_tensors=None,
                inputs_embeds=None,
            )

    def _to_device(self, array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=self._device, dtype=dtype)


def _host_copies(seq_lens: torch.Tensor, starts: np.ndarray) -> dict[str, torch.Tensor]:
    copies = {"_seq_lens_cpu": seq_lens, "_num_computed_tokens_cpu": torch.from_numpy(starts.astype(np.int32))}
    return {name: copies[name] for name in HOST_COPIES}
