"""A critic takes adapters through verl's own function."""

from types import SimpleNamespace

import pytest
import torch


def critic():
    from transformers import AutoModelForTokenClassification, Qwen3Config

    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, head_dim=16)
    return AutoModelForTokenClassification.from_config(
        Qwen3Config(vocab_size=50, num_key_value_heads=1, num_labels=1, **sizes)
    )


def engine_of(model_config):
    from verl.workers.engine.fsdp import transformer_impl

    from recipes.core import critic as critics

    class Engine:
        _build_lora_module = getattr(
            transformer_impl.FSDPEngine._build_lora_module,
            "__wrapped__",
            transformer_impl.FSDPEngine._build_lora_module,
        )

    engine = Engine()
    engine.model_config = model_config
    return engine, critics, SimpleNamespace(FSDPEngine=Engine)


def test_verl_builds_adapters_for_a_critic_and_they_train():
    settings = SimpleNamespace(
        lora_adapter_path=None,
        lora_rank=4,
        lora_alpha=8,
        target_modules="all-linear",
        target_parameters=None,
        exclude_modules=None,
    )
    engine, critics, module = engine_of(settings)
    with pytest.raises(AttributeError, match="prepare_inputs_for_generation"):
        engine._build_lora_module(critic())
    critics.give_critics_adapters(module)
    model = engine._build_lora_module(critic())
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    values = model(input_ids=torch.arange(6)[None]).logits
    values.sum().backward()
    assert any(value.grad.abs().sum() > 0 for name, value in model.named_parameters() if "score.lora_B" in name)
