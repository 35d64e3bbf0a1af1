"""An adapter leaves a checkpoint added to its base model, with the same logits."""

import json

import pytest
import torch

from recipes.launch import export_adapter


@pytest.fixture
def checkpoint(tmp_path):
    """What verl's checkpoint manager writes for one rank of a model with adapters, and that model's logits."""
    from peft import LoraConfig, get_peft_model
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, head_dim=16)
    config = Qwen3Config(vocab_size=64, num_key_value_heads=1, tie_word_embeddings=False, **sizes, dtype="float32")
    config.architectures = ["Qwen3ForCausalLM"]
    settings = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(Qwen3ForCausalLM(config), settings)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.3)
    for value in model.parameters():
        value.data = value.data.bfloat16().float()  # what verl's merger writes
    folder = tmp_path / "actor"
    (folder / "huggingface").mkdir(parents=True)
    torch.save(model.state_dict(), folder / "model_world_size_1_rank_0.pt")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    (folder / export_adapter.META).write_text(json.dumps({"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}))
    config.save_pretrained(folder / "huggingface")
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<eos>")
    tokenizer.save_pretrained(folder / "huggingface")
    ids = torch.arange(12)[None]
    with torch.no_grad():
        return folder, ids, model.eval()(input_ids=ids).logits


@torch.no_grad()
def test_the_export_is_the_trained_model(checkpoint, tmp_path):
    from transformers import AutoModelForCausalLM

    folder, ids, expected = checkpoint
    assert export_adapter.main([str(folder), str(tmp_path / "merged")]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    # the sum is rounded to the bfloat16 of the exported base
    assert torch.allclose(merged(input_ids=ids).logits, expected, atol=1e-2)
    assert not (tmp_path / "merged" / export_adapter.ADAPTER).exists()


def test_what_is_no_checkpoint_with_adapters_or_would_be_overwritten_is_refused(checkpoint, tmp_path):
    folder, *_ = checkpoint
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("")
    assert export_adapter.main([str(folder), str(tmp_path / "full")]) == 2
    assert export_adapter.main([str(folder), str(tmp_path / "full" / "kept")]) == 2
    assert export_adapter.main([str(tmp_path), str(tmp_path / "new")]) == 2
    (folder / export_adapter.META).unlink()
    assert export_adapter.main([str(folder), str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()
