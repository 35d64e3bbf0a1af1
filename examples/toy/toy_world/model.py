"""Shapes of the toy models: a Qwen3 small enough to train on a CPU, with heads that CPU attention kernels accept."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; heads are 32 wide."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    intermediate: int


SHAPES = {
    "base": Shape(hidden=128, layers=2, heads=4, key_value_heads=2, intermediate=256),
    "slim": Shape(hidden=96, layers=2, heads=3, key_value_heads=1, intermediate=192),
}


def new_model(shape: Shape, tokenizer: PreTrainedTokenizerBase, seed: int) -> Qwen3ForCausalLM:
    """A randomly initialised fp32 Qwen3 whose vocabulary is exactly the tokenizer's."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=32,
        max_position_embeddings=1024,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        # The usual 0.02 suits wide models; at this width it slows the start several times over.
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config).float()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model
