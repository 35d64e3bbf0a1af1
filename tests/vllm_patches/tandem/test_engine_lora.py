"""A senior with adapters: requests with one, with another and with none share a batch, and each is the loop's."""

import copy
import json

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("vllm")

from vllm import SamplingParams  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402

MODULES = {"q_proj": "self_attn", "v_proj": "self_attn", "down_proj": "mlp"}


def save_adapter(folder, model, seed: int, rank: int = 4) -> None:
    """A random adapter of the attention and the feed-forward layers, in PEFT's format."""
    folder.mkdir()
    dice, tensors = torch.Generator().manual_seed(seed), {}
    for number, layer in enumerate(model.model.layers):
        for module, parent in MODULES.items():
            out, into = getattr(getattr(layer, parent), module).weight.shape
            name = f"base_model.model.model.layers.{number}.{parent}.{module}"
            tensors[f"{name}.lora_A.weight"] = 0.3 * torch.randn(rank, into, generator=dice)
            tensors[f"{name}.lora_B.weight"] = 0.3 * torch.randn(out, rank, generator=dice)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = dict(r=rank, lora_alpha=rank, target_modules=list(MODULES), peft_type="LORA", task_type="CAUSAL_LM")
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"bias": "none", "use_dora": False}))


def with_adapter(reference, folder):
    from peft import PeftModel

    adapted = copy.copy(reference)
    merged = PeftModel.from_pretrained(copy.deepcopy(reference.models[1]), folder).merge_and_unload()
    adapted.models = dict(reference.models) | {1: merged}
    return adapted


def test_requests_with_and_without_adapters_share_a_batch(open_engine, models, jobs, reference, tmp_path):
    pytest.importorskip("peft")
    for seed, name in ((1, "one"), (2, "two")):
        save_adapter(tmp_path / name, reference.models[1], seed)
    loops = [reference, with_adapter(reference, tmp_path / "one"), with_adapter(reference, tmp_path / "two")]
    adapters = [None, *[LoRARequest(name, i, str(tmp_path / name)) for i, name in ((1, "one"), (2, "two"))]]
    engine = open_engine(
        models["senior"],
        dict(junior_model=str(models["junior"])),
        enable_lora=True,
        # vLLM's CPU kernels give rows without an adapter the last slot's: it must stay empty.
        max_loras=3,
        max_lora_rank=8,
    )
    assert engine.runner.tandem_mode == "lock_step"
    jobs = [
        *jobs[:10],
        *[type(job)(job.prompt, 30, dict(request=i, word_align="before")) for i, job in enumerate(jobs[:5])],
    ]
    params = [
        SamplingParams(temperature=0, max_tokens=job.num_tokens, ignore_eos=True, extra_args={"tandem": job.tandem})
        for job in jobs
    ]
    chosen = [i % 3 for i in range(len(jobs))]
    outputs = engine.llm.generate(
        [{"prompt_token_ids": job.prompt} for job in jobs],
        params,
        lora_request=[adapters[k] for k in chosen],
        use_tqdm=False,
    )
    written = [(list(o.outputs[0].token_ids), o.outputs[0].authorship_mask) for o in outputs]
    wanted = [loops[k].write(job) for k, job in zip(chosen, jobs, strict=True)]
    assert written == [(one.token_ids, one.mask) for one in wanted]
    assert wanted != [reference.write(job) for job in jobs]
