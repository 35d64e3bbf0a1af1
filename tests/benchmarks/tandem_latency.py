"""Cost of a tandem decoding step against single-model vLLM, measured inside one engine.

Both models are random Qwen3s of 12 layers and hidden size 1024 in bfloat16; half of the vocabulary are word
boundaries, so that with p = 0.5 an author writes about 4 tokens at a stretch. Prompt lengths are staggered over one
KV block, so that blocks do not fill all at once. The ways of running a step take turns on the same engine: ``single``
is vLLM's own model runner and scheduler on the senior, ``lock_step`` and ``lazy`` are the tandem decoder, and
``solo`` is the lazy mode on requests that the senior writes alone, as in validation. Time is CPU time of the process
per engine step, on a GPU wall time, over steps in which every request decodes. Each way's turn lies between two turns
of ``single``; a row gives the median of ``single``'s median steps, and for the others the ratio to the mean of the
two ``single`` turns around it, median over repeats: of median steps and, in brackets, of mean steps. With a smaller
junior the means count, since at batch 1 a step is either model's.

    OMP_NUM_THREADS=1 nice -n 5 python tests/benchmarks/tandem_latency.py --json latency.json --markdown latency.md
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

MODES = ("single", "lock_step", "lazy", "solo")
VOCAB = 16384


def save_shape(folder: Path, hidden: int, layers: int) -> str:
    """A model directory with a configuration and a tokenizer; the weights are random and made at load time."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config

    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        eos_token_id=1,
        bos_token_id=1,
        dtype="bfloat16",
    )
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)
    vocabulary = {"<unk>": 0, "<eos>": 1} | {f"{'Ġ' if i % 2 == 0 else ''}t{i}": i for i in range(2, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>").save_pretrained(folder)
    return str(folder)


class Bench:
    """One engine that can be run in each of the ways."""

    def __init__(self, senior: str, junior: str, kv_bytes: int, max_seqs: int, block_size: int):
        from vllm import LLM

        import vllm_patches
        from vllm_patches.tandem.config import engine_arguments
        from vllm_patches.tandem.schedule import SENIOR

        vllm_patches.register()
        tandem = engine_arguments(dict(junior_model=junior, junior_load_format="dummy", mode="lazy"))
        self.llm = LLM(
            senior,
            load_format="dummy",
            dtype="bfloat16",
            enforce_eager=True,
            block_size=block_size,
            max_model_len=2048,
            max_num_seqs=max_seqs,
            max_num_batched_tokens=2048,
            kv_cache_memory_bytes=kv_bytes,
            disable_log_stats=True,
            **tandem,
        )
        self.engine = self.llm.llm_engine
        self.runner = self.engine.model_executor.driver_worker.worker.model_runner
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self.classes = (type(self.runner), type(self.scheduler))
        self.both_models, self.senior_only = self.runner.attn_groups, [self.runner._groups[SENIOR]]
        self.cache = self.scheduler.kv_cache_manager
        self.holds_blocks_back = vars(self.cache)["allocate_slots"]
        self.block_size = block_size
        self.started = 0

    def use(self, mode: str) -> None:
        tandem = mode != "single"
        for target, own in zip((self.runner, self.scheduler), self.classes, strict=True):
            target.__class__ = own if tandem else own.__mro__[2] if own is self.classes[0] else own.__mro__[1]
        self.runner.attn_groups = self.both_models if tandem else self.senior_only
        if tandem:
            self.runner.tandem_mode = "lock_step" if mode == "lock_step" else "lazy"
        if mode in ("lazy", "solo"):
            self.cache.allocate_slots = self.holds_blocks_back
        else:
            vars(self.cache).pop("allocate_slots", None)

    def steps(self, mode: str, prompts: list[list[int]], num_tokens: int) -> tuple[list[float], dict]:
        """CPU milliseconds of each step in which every request decodes, and what the tandem runner counted."""
        import torch
        from vllm import SamplingParams

        self.use(mode)
        strategy = {"selection_strategy": "senior"} if mode == "solo" else {}
        for prompt in prompts:
            self.started += 1
            params = SamplingParams(
                temperature=1.0,
                max_tokens=num_tokens,
                ignore_eos=True,
                extra_args={"tandem": {"request": self.started} | strategy},
            )
            self.engine.add_request(f"request-{self.started}", {"prompt_token_ids": prompt}, params)
        times, clock = [], time.perf_counter if torch.cuda.is_available() else time.process_time
        self.runner.tandem_stats = type(self.runner.tandem_stats)()
        while self.engine.has_unfinished_requests():
            decoding = [
                request.num_computed_tokens >= request.num_prompt_tokens for request in self.scheduler.requests.values()
            ]
            begin = clock()
            self.engine.step()
            elapsed = clock() - begin
            if len(decoding) == len(prompts) and all(decoding):
                times.append(1e3 * elapsed)
        stats = self.runner.tandem_stats
        return times[1:-1], {"steps": stats.steps, "forwards": list(stats.forwards), "tokens": list(stats.tokens)}


def measure(bench: Bench, batch: int, context: int, num_tokens: int, repeats: int) -> dict:
    """One row of the table."""
    dice = random.Random(1000 * batch + context)
    prompts = [[dice.randrange(2, VOCAB) for _ in range(context + (i * 5) % bench.block_size)] for i in range(batch)]
    for mode in MODES:
        bench.steps(mode, prompts, 4)
    singles, ratios = [], {(mode, kind): [] for mode in MODES[1:] for kind in ("median", "mean")}
    for _ in range(repeats):
        before, _ = bench.steps("single", prompts, num_tokens)
        for mode in MODES[1:]:
            times, stats = bench.steps(mode, prompts, num_tokens)
            after, _ = bench.steps("single", prompts, num_tokens)
            for kind in ("median", "mean"):
                average = getattr(statistics, kind)
                ratios[mode, kind].append(2 * average(times) / (average(before) + average(after)))
            singles.append(statistics.median(after))
            before = after
            if mode == "lazy":
                forwards = sum(stats["forwards"]) / stats["steps"]
    row = {"batch": batch, "context": context, "steps_per_repeat": len(times), "repeats": repeats}
    row["single_ms"] = round(statistics.median(singles), 2)
    for (mode, kind), values in ratios.items():
        row[f"{mode}_ratio_of_{kind}s"] = round(statistics.median(values), 3)
        row[f"{mode}_ratios_of_{kind}s"] = [round(value, 3) for value in values]
    row["lazy_forwards_per_step"] = round(forwards, 2)
    return row


def markdown(rows: list[dict]) -> str:
    titles = ["batch", "context", "single, ms", "lock-step", "lazy", "lazy: forwards per step", "senior alone"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for row in rows:
        lock, lazy, solo = (
            f"{row[f'{mode}_ratio_of_medians']:.2f} ({row[f'{mode}_ratio_of_means']:.2f})" for mode in MODES[1:]
        )
        lines.append(
            f"| {row['batch']} | {row['context']} | {row['single_ms']:.1f} | {lock} | {lazy} "
            f"| {row['lazy_forwards_per_step']:.2f} | {solo} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--tokens", type=int, default=50, help="generated per request and repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--junior-layers", type=int, help="the senior's number by default")
    parser.add_argument("--block-size", type=int, default=16, help="tokens per KV block")
    parser.add_argument("--kv-gib", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory() as folder:
        depths = {"s": options.layers, "j": options.junior_layers or options.layers}
        senior, junior = (save_shape(Path(folder) / name, options.hidden, depths[name]) for name in depths)
        bench = Bench(senior, junior, int(options.kv_gib * 2**30), max(options.batches), options.block_size)
        rows = []
        for context in options.contexts:
            for batch in options.batches:
                rows.append(measure(bench, batch, context, options.tokens, options.repeats))
                print(json.dumps(rows[-1]), flush=True)
    print(markdown(rows))
    if options.json:
        options.json.write_text(
            json.dumps({"threads": torch.get_num_threads(), "block_size": options.block_size, "rows": rows}, indent=1)
            + "\n"
        )
    if options.markdown:
        options.markdown.write_text(markdown(rows))


if __name__ == "__main__":
    main()
