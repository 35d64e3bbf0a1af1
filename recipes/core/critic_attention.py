"""A critic that loads with the attention its config names, where verl loads it with flash-attn alone.

Runs started by :mod:`recipes.launch` install this; other verl jobs keep upstream's behaviour.
"""

from recipes.core.patching import patch_when_imported
from vllm_patches.upstream import is_replaced, replaces


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
    """Apply the replacement to this process when verl imports its model loaders."""
    patch_when_imported("verl.utils.model", "recipes/core/critic_attention.py", load_with_configured_attention)
