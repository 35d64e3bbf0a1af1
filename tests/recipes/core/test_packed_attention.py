"""Attention of a packed row equals that of its sequences alone, and what is no packed row goes to transformers."""

import pytest
import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from recipes.core import packed_attention

LENGTHS = (5, 9, 1, 7)
SIZES = dict(
    vocab_size=32, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, attn_implementation="sdpa",
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch):
    """Attention as on the CPU platform; gives the calls that reached transformers' own."""
    seen = []

    def upstream(*arguments, **options):
        seen.append(arguments)
        return sdpa_attention_forward(*arguments, **options)

    monkeypatch.setitem(
        transformers.AttentionInterface._global_mapping, "sdpa", packed_attention.within_sequences(upstream)
    )
    return seen


@pytest.fixture(params=[None, 4], ids=["full", "window"])
def model(request):
    torch.manual_seed(0)
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=request.param)).eval()


def gradients(model, logits):
    model.zero_grad()
    (logits.float() ** 2).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_a_packed_row_gives_the_logits_and_gradients_of_its_sequences(model, calls, monkeypatch):
    tokens = torch.randint(0, 32, (1, sum(LENGTHS)))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    packed = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
    assert not calls
    own = gradients(model, packed)
    alone = torch.cat([model(input_ids=part, use_cache=False).logits for part in tokens.split(LENGTHS, dim=1)], dim=1)
    assert len(calls) == 2 * len(LENGTHS)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own, gradients(model, alone), rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(packed_attention, "MOST_SCORES", sum(LENGTHS) * max(LENGTHS) - 1)
    long = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
    assert len(calls) == 2 * len(LENGTHS) + 2
    torch.testing.assert_close(packed, long, rtol=1e-4, atol=1e-5)


def test_a_padded_batch_and_a_cache_go_to_transformers(model, calls):
    tokens = torch.randint(0, 32, (2, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    padded = model(input_ids=tokens, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    assert len(calls) == 2
    alone = model(input_ids=tokens[:1, 2:], use_cache=False).logits
    torch.testing.assert_close(padded[:1, 2:], alone, rtol=1e-4, atol=1e-5)
    written = model.generate(tokens[1:], max_new_tokens=3, do_sample=False)
    assert len(calls) == 2 + 2 + 2 * 3 and written.shape == (1, 9)
