"""Load the frozen junior beside the senior in a vLLM worker, and restore it after a level 2 sleep."""

from __future__ import annotations

import copy

import torch
from torch import nn
from vllm.compilation.backends import set_model_tag
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model

from vllm_patches.tandem.config import TandemConfig

PREFIX = "tandem_junior"


def junior_vllm_config(config: TandemConfig, senior: VllmConfig) -> VllmConfig:
    """The senior's configuration with the junior's model in it; the compilation config is shared.

    Sharing it puts the junior's attention layers into the senior's forward context, so that vLLM gives them KV caches
    in the senior's blocks.
    """
    model = senior.model_config
    trust = config.junior_trust_remote_code
    arguments = EngineArgs(
        model=config.junior_model,
        revision=config.junior_revision,
        tokenizer=model.tokenizer,
        dtype=config.junior_dtype or str(model.dtype).removeprefix("torch."),
        quantization=config.junior_quantization,
        trust_remote_code=model.trust_remote_code if trust is None else trust,
        max_model_len=model.max_model_len,
        enforce_eager=model.enforce_eager,
        seed=model.seed,
    )
    junior = copy.copy(senior)
    junior.model_config = arguments.create_model_config()
    junior.lora_config = None
    # vLLM names compiled artifacts by a hash of the configuration: without a difference, a junior with the senior's own
    # model path would load the senior's.
    junior.additional_config = {**senior.additional_config, "tandem_model": "junior"}
    junior.load_config = copy.copy(senior.load_config)
    # A trainer loads its senior as "dummy"; a junior loaded so would write random tokens.
    junior.load_config.load_format = config.junior_load_format
    junior.quant_config = VllmConfig._get_quantization_config(junior.model_config, junior.load_config)
    return junior


def load_junior(junior_config: VllmConfig) -> tuple[nn.Module, frozenset[str]]:
    """Load the junior, frozen; returns it with the names of its attention layers."""
    context = junior_config.compilation_config.static_forward_context
    before = set(context)
    with set_model_tag(PREFIX):
        model = get_model(vllm_config=junior_config, model_config=junior_config.model_config, prefix=PREFIX)
    model.requires_grad_(False)
    return model, frozenset(set(context) - before)


def memory_of(model: nn.Module) -> int:
    """Bytes of a model's parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])


class HostCopy:
    """A model's parameters and buffers in host memory, to write back after its device memory was discarded."""

    def __init__(self, model: nn.Module):
        self._tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in _named_tensors(model)}

    def restore(self, model: nn.Module) -> None:
        """Write every tensor back in place.

        Raises:
            RuntimeError: the model no longer has the tensors that were copied.
        """
        tensors = dict(_named_tensors(model))
        if tensors.keys() != self._tensors.keys():
            raise RuntimeError("the junior's tensors changed names since they were copied; it cannot be restored")
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.data.copy_(self._tensors[name])


def _named_tensors(model: nn.Module):
    yield from model.named_parameters()
    yield from model.named_buffers()
