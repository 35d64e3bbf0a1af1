"""Load the frozen junior beside the senior in a vLLM worker, and restore it after a level 2 sleep."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn
from vllm import EngineArgs
from vllm.compilation.backends import set_model_tag
from vllm.config import VllmConfig
from vllm.model_executor.model_loader import get_model

from vllm_patches.tandem.config import TandemConfig
from vllm_patches.tandem.engine_checks import senior_of
from vllm_patches.tandem.weight_sharing import decide

if TYPE_CHECKING:
    from vllm_patches.tandem.shared_weights import FrozenBase, OnePass

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


def load_or_share(
    config: TandemConfig,
    vllm_config: VllmConfig,
    junior_config: VllmConfig,
    senior: nn.Module,
    prefix: str,
) -> tuple[nn.Module, FrozenBase | None]:
    """The junior, and what guards its weights where they are the senior's too; says on the first worker which it is.

    Args:
        config, vllm_config, senior: the engine's settings, its configuration, and its model with adapters.
        junior_config: the configuration with the junior's model in it.
        prefix: of the junior's layers; also the tag under which it is compiled.

    Raises:
        ValueError: ``share_weights: true``, and the junior cannot read the senior's weights.
    """
    shares, reason = decide(config, senior_of(config, vllm_config))
    with set_model_tag(prefix):
        if shares:
            # Its imports are those of the versions that the lock's feature `shared_weights` holds for.
            from vllm_patches.tandem import shared_weights

            fault = shared_weights.unshareable_layer(senior, vllm_config)
            if fault is None:
                junior = shared_weights.build_shared_junior(junior_config, senior, prefix)
                _say(vllm_config, junior, "one set of weights serves both models", f"saved ({reason})")
                return junior, shared_weights.FrozenBase(senior, junior)
            if config.share_weights is True:
                raise ValueError(f"share_weights is true, and the junior cannot read the senior's weights: {fault}")
            reason = fault
        junior = get_model(vllm_config=junior_config, prefix=prefix)
    junior.requires_grad_(False)
    _say(vllm_config, junior, "the junior has weights of its own", f"more ({reason})")
    return junior, None


def join_passes(vllm_config: VllmConfig, senior: nn.Module, junior: nn.Module) -> OnePass | None:
    """One forward pass for a junior that shares the senior's weights, in lock-step; None where each needs its own."""
    from vllm_patches.tandem.shared_weights import OnePass, one_pass_fault

    fault = one_pass_fault(senior)
    if fault is not None:
        _print(vllm_config, f"each model has a pass of its own ({fault})")
        return None
    most = vllm_config.scheduler_config.max_num_batched_tokens // 2
    _print(vllm_config, f"one pass serves both models, in steps of up to {most:,} tokens")
    return OnePass(senior, junior)


def _say(vllm_config: VllmConfig, junior: nn.Module, what: str, why: str) -> None:
    _print(vllm_config, f"{what}, {memory_of(junior) / 2**20:,.1f} MiB {why}")


def _print(vllm_config: VllmConfig, sentence: str) -> None:
    if vllm_config.parallel_config.rank == 0:  # at the log level of a trainer's engine nobody would see it
        print(f"tandem decoding: {sentence}", flush=True)


def memory_of(model: nn.Module) -> int:
    """Bytes of a model's parameters and buffers, those included that vLLM's CPU backend has packed away."""
    held = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    for layer in model.modules():
        sizes = (getattr(layer, "input_size_per_partition", 0), getattr(layer, "output_size_per_partition", 0))
        weight = getattr(layer, "weight", None)
        # A packed layer keeps an empty weight, and its own copy behind a function.
        if all(sizes) and isinstance(weight, torch.Tensor) and weight.numel() == 0:
            held += sizes[0] * sizes[1] * layer.params_dtype.itemsize
    return held


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
