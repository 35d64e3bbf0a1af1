"""Critics as verl does not build them: with adapters, and with the attention that their config names.

Runs started by :mod:`recipes.launch` install this; other verl jobs keep upstream's behaviour.
"""

from recipes.core.patching import patch_when_imported
from vllm_patches.upstream import is_replaced, replaces

USED_BY = "recipes/core/critic.py"


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


def load_with_configured_attention(module) -> None:
    """Replace ``load_valuehead_model`` where the config names another attention than flash-attn.

    Symptom: a critic fails to load without flash-attn, with an error that names TRL. Trigger: upstream hard-codes
    ``flash_attention_2``. Safe: the same transformers class, from the same path, with the same config; where the config
    names flash-attn, upstream's own function runs.
    """
    upstream = module.load_valuehead_model
    if is_replaced(upstream):
        return

    @replaces(upstream)
    def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code):
        attention = model_config._attn_implementation
        if attention in (None, "flash_attention_2"):
            return upstream(local_path, torch_dtype, model_config, trust_remote_code)
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            torch_dtype=torch_dtype,
            config=model_config,
            attn_implementation=attention,
            trust_remote_code=trust_remote_code,
        )

    module.load_valuehead_model = load_valuehead_model


def install() -> None:
    """Apply both replacements to this process when verl imports what they replace."""
    patch_when_imported("verl.workers.engine.fsdp.transformer_impl", USED_BY, give_critics_adapters)
    patch_when_imported("verl.utils.model", USED_BY, load_with_configured_attention)
