"""The junior as a second reader of the senior's base weights, inside a vLLM worker.

vLLM wraps each layer of a senior with adapters and keeps the layer itself, weights and kernels as they were loaded, in
``base_layer``. The shared junior is the same architecture, built without weights, whose layers are those very layers;
its own are only the attention layers, which hold the KV cache, and the containers around them. Its forward pass is the
senior's without adapters: the same modules on the same tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from vllm.config import VllmConfig
from vllm.lora.layers import BaseLayerWithLoRA, LogitsProcessorWithLoRA, VocabParallelEmbeddingWithLoRA
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype


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
    """Both models' hidden states from one pass: twice the rows, each weight read once.

    The first half of the rows are the senior's, the second half the junior's, both of the same tokens. Layers without
    adapters see all rows. Of a layer with adapters the base sees all rows, and the adapter is added to the first half.
    Attention splits the halves, since each model has keys and values of its own.

    Args:
        senior: the model with adapters.
        junior: the model that ``shared_weights.build_shared_junior`` made of it.
    """

    def __init__(self, senior: nn.Module, junior: nn.Module):
        self._made: dict[int, nn.Module] = {}
        self._both = self._over(senior, junior)
        self._split = [layer for layer in self._made.values() if isinstance(layer, StackedLinear)]

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
            return StackedLinear(senior, junior)
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


class StackedLinear(nn.Module):
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


REMEDY = "set share_weights to false, which gives the junior weights of its own"
# These keep the layer below in `base_layer`, leave it as it is and add to its output.
_ADDING = (BaseLinearLayerWithLoRA, VocabParallelEmbeddingWithLoRA, LogitsProcessorWithLoRA)
_CHUNK = 1 << 24


class SharedWeightsError(RuntimeError):
    """Something would change, or has changed, the weights that a frozen junior shares with the senior."""


def unshareable_layer(senior: nn.Module, vllm_config: VllmConfig) -> str | None:
    """Why the junior cannot read this senior's layers, in words; None where it can."""
    held = {id(layer) for layer in senior.modules()}
    for name, layer in vllm_config.compilation_config.static_forward_context.items():
        if id(layer) not in held:
            return f"layer {name} is none of the model's own modules"
        if type(layer) is not Attention and not isinstance(layer, BaseLayerWithLoRA):
            return f"layer {name} is a {type(layer).__name__}, which vLLM finds by its name"
        if hasattr(layer, "quant_method"):
            return f"layer {name} has scales of its own for keys and values"
    for name, layer in senior.named_modules():
        if isinstance(layer, BaseLayerWithLoRA) and not isinstance(layer, _ADDING):
            return f"the adapter of layer {name} is a {type(layer).__name__}, which changes the layer below it"
    return None


def build_shared_junior(junior_config: VllmConfig, senior: nn.Module, prefix: str) -> nn.Module:
    """The junior, its layers those of ``senior`` below the adapters; its attention layers are registered and its own.

    Raises:
        SharedWeightsError: the two do not match layer by layer.
    """
    model_config = junior_config.model_config
    with (
        set_default_torch_dtype(model_config.dtype),
        torch.device(junior_config.device_config.device),
        _WeightsNowhere(),
    ):
        junior = initialize_model(vllm_config=junior_config, model_config=model_config, prefix=prefix)
    _adopt(junior, senior, "")
    for layer in junior.modules():
        if isinstance(layer, Attention):
            layer.process_weights_after_loading(model_config.dtype)
    _check(junior, senior)
    return junior.eval()


class _WeightsNowhere(TorchFunctionMode):
    """Inside it ``torch.empty``, from which vLLM makes weights to be loaded, gives tensors without memory."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _adopt(own: nn.Module, senior: nn.Module, path: str) -> None:
    """Replace, below ``own``, all but attention layers and what contains them by what ``senior`` has there."""
    if type(own) is not type(senior) or own._modules.keys() != senior._modules.keys():
        raise SharedWeightsError(f"junior and senior differ at {path or 'their top'}: {REMEDY}")
    if isinstance(own, Attention):
        return
    for mine, theirs in ((own._parameters, senior._parameters), (own._buffers, senior._buffers)):
        if mine.keys() != theirs.keys():
            raise SharedWeightsError(f"junior and senior have other tensors at {path or 'their top'}: {REMEDY}")
        mine.update(theirs)
    for name, child in senior._modules.items():
        layer = child.base_layer if isinstance(child, BaseLayerWithLoRA) else child
        if layer is None:
            continue
        if any(isinstance(part, BaseLayerWithLoRA | Attention) for part in layer.modules()):
            _adopt(own._modules[name], layer, f"{path}.{name}".lstrip("."))
        elif type(own._modules[name]) is type(layer):
            own._modules[name] = layer
        else:
            raise SharedWeightsError(f"junior and senior have other layers at {path}.{name}: {REMEDY}")


def _check(junior: nn.Module, senior: nn.Module) -> None:
    held = {id(tensor) for tensor in senior.parameters()}
    for name, tensor in junior.named_parameters():
        if id(tensor) not in held:
            raise SharedWeightsError(f"the junior's {name} is none of the senior's weights: {REMEDY}")
    for name, layer in junior.named_modules():
        for holder in (layer, getattr(layer, "impl", None)):
            for attribute, value in vars(holder).items() if holder is not None else ():
                for tensor in _tensors_in(value):
                    if tensor.is_meta:
                        raise SharedWeightsError(f"the junior's {name}.{attribute} was left without values: {REMEDY}")


def _tensors_in(value) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors_in(one)


class FrozenBase:
    """Keeps the shared weights as they are: loading others is refused, and any other change is found.

    Args:
        senior: the model that a trainer may write to; its ``load_weights`` is replaced.
        junior: the model whose parameters are the shared weights.
    """

    def __init__(self, senior: nn.Module, junior: nn.Module):
        self._junior = junior
        self._sums = self._fingerprint()
        senior.load_weights = self.refuse

    def refuse(self, *args, **kwargs):
        """Stands for ``load_weights`` of the senior.

        Raises:
            SharedWeightsError: always.
        """
        raise SharedWeightsError(
            "full weights were sent to a senior whose base the frozen junior reads (share_weights): they would change "
            "both models. Send adapters alone (verl: model.lora.merge=false, rollout.load_format=auto), or "
            f"{REMEDY}"
        )

    def check(self) -> None:
        """Compare the weights with what they were when the junior was built; reads each once.

        Raises:
            SharedWeightsError: they differ.
        """
        now = self._fingerprint()
        changed = [name for name, total in self._sums.items() if now.get(name) != total]
        if changed:
            raise SharedWeightsError(
                f"{len(changed)} of the weights that the frozen junior shares with the senior have changed (first "
                f"{changed[0]}): the junior is no longer what it was, and the run cannot go on. {REMEDY.capitalize()}"
            )

    @torch.no_grad()
    def _fingerprint(self) -> dict[str, int]:
        return {name: _sum_of_bits(tensor) for name, tensor in self._junior.named_parameters()}


def _sum_of_bits(tensor: torch.Tensor) -> int:
    """The elements, read as whole numbers and summed modulo 2**64, in pieces that bound the memory this takes."""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    pieces = tensor.detach().reshape(-1).view(whole).split(_CHUNK)
    return sum(int(piece.sum(dtype=torch.int64)) for piece in pieces) % (1 << 64)
