"""One forward pass for a junior and a senior that share their weights: twice the rows, each weight read once.

The first half of the rows are the senior's, the second half the junior's, both of the same tokens. Layers without
adapters see all rows. Of a layer with adapters the base sees all rows, and the adapter is added to the first half.
Attention splits the halves, since each model has keys and values of its own.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from vllm.lora.layers import BaseLayerWithLoRA, VocabParallelEmbeddingWithLoRA
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.model_executor.layers.attention import Attention


def one_pass_fault(senior: nn.Module) -> str | None:
    """Why the two models need a pass each, in words; None where one pass serves both."""
    for name, layer in senior.named_modules():
        if not getattr(layer, "do_not_compile", True):
            return "the senior is compiled, with its adapters on every row (enforce_eager does not compile it)"
        if isinstance(layer, BaseLinearLayerWithLoRA):
            if layer._enable_aux_cuda_stream:
                return "VLLM_LORA_ENABLE_DUAL_STREAM calls layers by their names"
            if layer.lora_config.fully_sharded_loras:
                return f"the adapter of {name} is sharded"
    return None


class OnePass:
    """Both models' hidden states from one pass.

    Args:
        senior: the model with adapters.
        junior: the model that ``shared_weights.build_shared_junior`` made of it.
    """

    def __init__(self, senior: nn.Module, junior: nn.Module):
        self._made: dict[int, nn.Module] = {}
        self._both = self._over(senior, junior)
        self._split = [layer for layer in self._made.values() if isinstance(layer, Halves)]

    def run(self, input_ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states (N, H) of the senior and of the junior at N tokens.

        Args:
            input_ids, positions: (N,), as for each model alone; the forward context has both models' metadata.

        Raises:
            RuntimeError: the model went past a layer where the halves part, so that the junior's rows are not its own.
        """
        for layer in self._split:
            layer.has_run = False
        hidden = self._both(
            input_ids=input_ids.repeat(2), positions=positions.repeat(2), intermediate_tensors=None, inputs_embeds=None
        )
        if not all(layer.has_run for layer in self._split):
            raise RuntimeError(
                f"{type(self._both).__name__} does not call its layers by their names: set share_weights to false"
            )
        senior, junior = hidden.chunk(2)
        return senior, junior

    def _over(self, senior: nn.Module, junior: nn.Module) -> nn.Module:
        """A module that takes both halves, of the parameters of ``senior``; ``junior`` is what stands there in it."""
        if id(senior) not in self._made:  # tied layers stand in two places
            self._made[id(senior)] = self._make(senior, junior)
        return self._made[id(senior)]

    def _make(self, senior: nn.Module, junior: nn.Module) -> nn.Module:
        if isinstance(senior, Attention | VocabParallelEmbeddingWithLoRA):
            return Halves(senior, junior)
        if isinstance(senior, BaseLinearLayerWithLoRA):
            return _adapting_the_first_half(senior)
        parting = any(isinstance(part, Attention | BaseLayerWithLoRA) for part in senior.modules())
        if isinstance(senior, BaseLayerWithLoRA) or not parting:
            return senior
        both = copy.copy(senior)
        both._modules = {
            name: child if child is None else self._over(child, junior._modules[name])
            for name, child in senior._modules.items()
        }
        return both


class Halves(nn.Module):
    """One layer on the first half of the rows, another on the second; ``has_run`` says that it was called."""

    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second, self.has_run = first, second, False

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        self.has_run = True
        pairs = [tensor.chunk(2) for tensor in tensors]
        return torch.cat([self.first(*(one for one, _ in pairs)), self.second(*(other for _, other in pairs))])


def _adapting_the_first_half(layer: BaseLinearLayerWithLoRA) -> BaseLinearLayerWithLoRA:
    twin = copy.copy(layer)

    def add_adapter(x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        rows = len(x) // 2
        adapted = layer._apply_lora_to_output(x[:rows], output[:rows])
        if adapted.data_ptr() == output.data_ptr():
            return output
        return torch.cat([adapted, output[rows:]])

    twin._apply_lora_to_output = add_adapter
    return twin
