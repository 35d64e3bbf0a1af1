"""Log-probabilities of a text by a model's weights, against the whole table of a model of a few hundred weights."""

import pytest
import torch
import transformers

from recipes.errors import EnvironmentProblem
from recipes.evaluation.checkpoint import WeightsReader


def test_every_token_has_its_own_log_probability(tmp_path):
    from tokenizers import Tokenizer, models

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.LlamaConfig(vocab_size=7, num_key_value_heads=1, max_position_embeddings=16, **sizes)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    words = Tokenizer(models.WordLevel({str(i): i for i in range(7)}, unk_token="0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="0").save_pretrained(tmp_path)
    reader, texts, threads = WeightsReader(str(tmp_path)), [[1, 5, 3], [2, 6]], torch.get_num_threads()
    assert reader.model_length == 16
    for ids, found in zip(texts, reader.prompt_log_probs(texts), strict=True):
        table = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        assert found[0] is None
        assert [entry[token] for entry, token in zip(found[1:], ids[1:], strict=True)] == pytest.approx(
            [table[place, token].item() for place, token in enumerate(ids[1:])], abs=1e-5
        )
    assert torch.get_num_threads() == threads
    with pytest.raises(EnvironmentProblem, match="do not load|cannot be loaded"):
        WeightsReader(str(tmp_path / "nowhere"))
