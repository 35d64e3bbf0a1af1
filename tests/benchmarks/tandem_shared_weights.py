"""What a senior with adapters and its base as junior take: memory of the process, and CPU time of a lock-step step.

Each way is a process of its own: ``single`` is vLLM alone with the adapter, ``own`` the tandem decoder whose junior has
a copy of the base, ``shared`` the one whose junior reads the senior's base, in one pass. The model is a random Qwen3 in
bfloat16, every linear layer adapted. Time is CPU time of the process per engine step in which every request decodes,
median; a word boundary is every second id, so that the authors change.

    OMP_NUM_THREADS=1 nice -n 5 python tests/benchmarks/tandem_shared_weights.py --json shared_weights.jsonl
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tandem_latency import VOCAB, save_shape

WAYS = ("single", "own", "shared")
LINEAR = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}


def save_models(folder: Path, hidden: int, layers: int, rank: int) -> None:
    """A random base in ``folder/base`` and an adapter of all its linear layers in ``folder/adapter``."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, Qwen3ForCausalLM

    save_shape(folder / "base", hidden, layers)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3ForCausalLM(AutoConfig.from_pretrained(folder / "base"))
    model.save_pretrained(folder / "base")
    tensors = {}
    for number, layer in enumerate(model.model.layers):
        for parent, names in LINEAR.items():
            for name in names:
                out, into = getattr(getattr(layer, parent), name).weight.shape
                key = f"base_model.model.model.layers.{number}.{parent}.{name}"
                tensors[f"{key}.lora_A.weight"] = 0.02 * torch.randn(rank, into)
                tensors[f"{key}.lora_B.weight"] = 0.02 * torch.randn(out, rank)
    (folder / "adapter").mkdir()
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors")
    settings = dict(r=rank, lora_alpha=rank, target_modules=sum(map(list, LINEAR.values()), []), bias="none")
    settings |= dict(peft_type="LORA", task_type="CAUSAL_LM", use_dora=False)
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(settings))


def resident_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def weights_mib(*models) -> float:
    """Of distinct tensors: parameters and buffers."""
    found = {}
    for model in models:
        for tensor in (*model.parameters(), *model.buffers()):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values()) / 2**20


def measure(way: str, folder: Path, batches: list[int], num_tokens: int, rank: int) -> dict:
    os.environ |= dict(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", VERL_DUETS_CPU="1")
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    import vllm_patches
    from vllm_patches.tandem.config import engine_arguments

    vllm_patches.register()
    base = str(folder / "base")
    tandem = dict(junior_model=base, mode="lock_step", share_weights=way == "shared")
    options = {} if way == "single" else engine_arguments(tandem)
    llm = LLM(
        base,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=max(batches),
        max_num_batched_tokens=1024,
        kv_cache_memory_bytes=1 << 29,
        enable_lora=True,
        max_loras=1,
        max_lora_rank=rank,
        async_scheduling=False,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **{name: value for name, value in options.items() if name != "async_scheduling"},
    )
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    models = [runner.get_model(), *([] if way == "single" else [runner.junior])]
    row = dict(way=way, resident_mib=round(resident_mib(), 1), weights_mib=round(weights_mib(*models), 1))
    adapter, dice = LoRARequest("adapter", 1, str(folder / "adapter")), random.Random(0)
    for batch in batches:
        for i in range(batch):
            params = SamplingParams(temperature=1, seed=i, max_tokens=num_tokens, ignore_eos=True)
            if way != "single":
                params.extra_args = {"tandem": {"request": i}}
            prompt = {"prompt_token_ids": [dice.randrange(2, VOCAB) for _ in range(64)]}
            llm.llm_engine.add_request(f"{batch}-{i}", prompt, params, lora_request=adapter)
        spent = []
        while llm.llm_engine.has_unfinished_requests():
            started = time.process_time()
            llm.llm_engine.step()
            spent.append(time.process_time() - started)
        row[f"ms_{batch}"] = round(1000 * statistics.median(spent[5:-2]), 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=40, help="generated per request")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--json", type=Path, help="rows are appended to it")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--models", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        row = measure(arguments.way, arguments.models, arguments.batches, arguments.tokens, arguments.rank)
        row |= dict(hidden=arguments.hidden, layers=arguments.layers, rank=arguments.rank)
        print(json.dumps(row), flush=True)
        if arguments.json:
            with arguments.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        save_models(Path(folder), arguments.hidden, arguments.layers, arguments.rank)
        for way in WAYS:
            subprocess.run([sys.executable, *sys.argv, "--way", way, "--models", folder], check=True)


if __name__ == "__main__":
    main()
