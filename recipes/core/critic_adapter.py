"""A critic that takes adapters, where verl builds them for language models alone.

Runs started by :mod:`recipes.launch` install this; other verl jobs keep upstream's behaviour.
"""

from recipes.core.patching import patch_when_imported
from vllm_patches.upstream import is_replaced, replaces


def give_critics_adapters(module) -> None:
    """Let ``FSDPEngine._build_lora_module`` pass where the model is a critic.

    Symptom: ``critic.model.lora_rank`` ends with "'...ForTokenClassification' object has no attribute
    'prepare_inputs_for_generation'". Trigger: upstream asks peft for a causal language model whatever the model is, and
    peft keeps that method, which a critic never calls. Safe: the method is there and raises where it is called.
    """
    engine = module.FSDPEngine
    upstream = engine._build_lora_module
    if is_replaced(upstream):
        return

    @replaces(upstream)
    def _build_lora_module(self, module):
        if not hasattr(module, "prepare_inputs_for_generation"):
            module.prepare_inputs_for_generation = _no_generation
        return upstream(self, module)

    engine._build_lora_module = _build_lora_module


def _no_generation(*args, **kwargs):
    raise NotImplementedError("a critic generates nothing")


def install() -> None:
    """Apply the replacement to this process when verl imports its FSDP engine."""
    patch_when_imported(
        "verl.workers.engine.fsdp.transformer_impl", "recipes/core/critic_adapter.py", give_critics_adapters
    )
