"""Models whose every layer attends to a window: vLLM frees what has left it, and a model that reads behind needs it."""

import pytest
import torch
from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

WINDOW = 32


@pytest.fixture(scope="module")
def pair(tmp_path_factory, models):
    folder = tmp_path_factory.mktemp("windows")
    for seed, name in enumerate(("senior", "junior")):
        torch.manual_seed(seed)
        config = MistralConfig(
            vocab_size=512,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=4096,
            sliding_window=WINDOW,
            tie_word_embeddings=False,
            eos_token_id=1,
            bos_token_id=1,
            initializer_range=0.35,
        )
        MistralForCausalLM(config).float().save_pretrained(folder / name)
        AutoTokenizer.from_pretrained(models["senior"]).save_pretrained(folder / name)
    return folder


@torch.inference_mode()
def chosen(model, text: list[int]) -> list[int]:
    return model(torch.tensor([text])).logits[0].argmax(-1).tolist()


# Few blocks, so that one that was freed is soon written to by another request.
OPTIONS = dict(max_model_len=256, num_gpu_blocks_override=34, enable_prefix_caching=False, max_num_seqs=6)


def test_lock_step_writes_what_each_model_chooses(open_engine, pair, make_job):
    engine = open_engine(pair / "senior", dict(junior_model=str(pair / "junior"), mode="lock_step"), **OPTIONS)
    turns = [dict(selection_strategy="chunk", chunk_size=25 + i, request=i) for i in range(6)]
    jobs = [make_job([(7 * i + 3 * k) % 500 + 2 for k in range(40 + i)], 90, turn) for i, turn in enumerate(turns)]
    models = [
        MistralForCausalLM.from_pretrained(pair / name, dtype=torch.float32, attn_implementation="eager").eval()
        for name in ("junior", "senior")
    ]
    for job, found in zip(jobs, engine.run(jobs), strict=True):
        text, start = job.prompt + found.token_ids, len(job.prompt) - 1
        of = [chosen(model, text) for model in models]
        assert found.token_ids == [of[author][start + k] for k, author in enumerate(found.mask)]
        assert set(found.mask) == {0, 1}


@pytest.mark.parametrize("mode", ["lazy", "speculative"])
def test_the_other_modes_are_refused_at_the_start(open_engine, pair, mode):
    with pytest.raises(ValueError, match="attention has windows.*set mode to 'lock_step'"):
        open_engine(pair / "senior", dict(junior_model=str(pair / "junior"), mode=mode), **OPTIONS)
