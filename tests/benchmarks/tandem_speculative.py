"""Cost of speculative tandem decoding per emitted token, against single-model vLLM, measured inside one engine.

Senior: a random Qwen3 of 12 layers and hidden size 1024 in bfloat16, as in ``tandem_latency.py``. Junior: ``equal`` is
the senior with noise on its weights, ``quarter`` the senior's first 3 layers (its other 9 write little into the
residual stream). The noise, or what the 9 layers write, is tuned until the two laws overlap by ``--agreement``; the
acceptance seen stands in the table. ``single`` is vLLM's own model runner and scheduler on the senior in the same
engine; it runs before and after each way of decoding, and a ratio is to the mean of the two. Time is CPU time of the
process over engine steps in which every request decodes, divided by the tokens that those steps emitted, both summed
over the repeats of a cell: what a few rounds accept is luck.

    OMP_NUM_THREADS=1 nice -n 5 python tests/benchmarks/tandem_speculative.py --junior quarter --json quarter.jsonl
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import os
import random
import tempfile
import time
from pathlib import Path

import torch

VOCAB, LAYERS, HIDDEN = 16384, 12, 1024


def save(model, folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model.to(torch.bfloat16).save_pretrained(folder)
    vocabulary = {"<unk>": 0, "<eos>": 1} | {f"{'Ġ' if i % 2 == 0 else ''}t{i}": i for i in range(2, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>").save_pretrained(folder)


@torch.inference_mode()
def save_pair(folder: Path, junior: str, agreement: float, hidden: int = HIDDEN, layers: int = LAYERS) -> None:
    """Save ``senior`` and ``junior``, tuned by bisection to a mean overlap of their laws of ``agreement``."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
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
        initializer_range=0.02,
    )
    senior = Qwen3ForCausalLM(config).float().eval()
    senior.lm_head.weight.mul_(5)  # logits with a standard deviation of about 3
    senior.model.embed_tokens.weight.mul_(25)
    shallow = layers // 4
    late = [
        x
        for layer in senior.model.layers[shallow:]
        for x in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight)
    ]
    start = [weight.clone() for weight in late]
    own = copy.deepcopy(config)
    if junior == "quarter":
        own.num_hidden_layers, own.layer_types = shallow, own.layer_types[:shallow]
    small = Qwen3ForCausalLM(own).float().eval()
    small.load_state_dict(senior.state_dict(), strict=False)
    matrices = [weight for weight in small.parameters() if weight.ndim == 2]
    base = [weight.clone() for weight in matrices]
    noise = [torch.randn_like(weight) * weight.std() for weight in matrices]
    ids = torch.randint(2, VOCAB, (1, 96))
    low, high = 0.0, 1.0
    for _ in range(8):
        middle = (low + high) / 2
        if junior == "equal":
            for weight, before, change in zip(matrices, base, noise, strict=True):
                weight.copy_(before + middle * change)
        else:
            for weight, before in zip(late, start, strict=True):
                weight.copy_(before * middle)
        laws = [model(ids).logits[0, 8:].softmax(-1) for model in (senior, small)]
        overlap = float(torch.minimum(*laws).sum(-1).mean())
        low, high = (middle, high) if overlap > agreement else (low, middle)
        if abs(overlap - agreement) < 0.005:
            break
    save(senior, folder / "senior")
    save(small, folder / "junior")


class Bench:
    """One engine that decodes with any number of drafts up to ``max_drafts``, or with the senior alone (0)."""

    def __init__(self, folder: Path, max_drafts: int, max_seqs: int, kv_bytes: int):
        from vllm import LLM

        import vllm_patches
        from vllm_patches.tandem.config import engine_arguments

        vllm_patches.register()
        settings = dict(
            junior_model=str(folder / "junior"),
            mode="speculative",
            num_draft_tokens=max_drafts,
            adapt_draft_tokens=False,
        )
        self.llm = LLM(
            str(folder / "senior"),
            dtype="bfloat16",
            enforce_eager=True,
            block_size=16,
            max_model_len=2048,
            max_num_seqs=max_seqs,
            max_num_batched_tokens=2048 + max_seqs,
            kv_cache_memory_bytes=kv_bytes,
            disable_log_stats=True,
            **engine_arguments(settings),
        )
        self.engine = self.llm.llm_engine
        self.runner = self.engine.model_executor.driver_worker.worker.model_runner
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        self.classes = (type(self.runner), type(self.scheduler))
        self.drafts_of, self.max_drafts = self.runner.speculative_config, max_drafts
        self.started = 0

    def use(self, drafts: int) -> None:
        runner, scheduler = self.classes
        self.runner.__class__ = runner if drafts else runner.__mro__[2]
        self.scheduler.__class__ = scheduler if drafts else scheduler.__mro__[2]
        self.runner.speculative_config = self.drafts_of if drafts else None
        self.runner.num_spec_tokens = self.scheduler.num_spec_tokens = self.max_drafts if drafts else 0
        self.scheduler.num_lookahead_tokens = self.max_drafts if drafts else 0
        self.scheduler.draft_length.current = drafts

    def run(self, drafts: int, prompts: list[list[int]], num_tokens: int, strategy: str = "word") -> Counts:
        """Answer the prompts once, as new requests."""
        from vllm import SamplingParams

        self.use(drafts)
        for prompt in prompts:
            self.started += 1
            params = SamplingParams(
                temperature=1.0,
                max_tokens=num_tokens,
                ignore_eos=True,
                detokenize=False,
                extra_args={"tandem": {"request": self.started, "selection_strategy": strategy}},
            )
            self.engine.add_request(f"request-{self.started}", {"prompt_token_ids": prompt}, params)
        spent, tokens, steps = 0.0, 0, 0
        self.runner.tandem_stats = type(self.runner.tandem_stats)()
        requests = self.scheduler.requests
        while self.engine.has_unfinished_requests():
            alive = list(requests.values())
            ready = len(alive) == len(prompts) and all(
                r.num_computed_tokens >= r.num_tokens - 1 and (not drafts or r.spec_token_ids) for r in alive
            )
            before = sum(r.num_output_tokens for r in alive)
            begin = time.process_time()
            self.engine.step()
            elapsed = time.process_time() - begin
            if ready and not any(r.is_finished() for r in alive):
                spent, steps = spent + elapsed, steps + 1
                tokens += sum(r.num_output_tokens for r in alive) - before
        seen = self.runner.tandem_stats.outcome
        return Counts(spent, tokens, steps, seen.tested, seen.passed)


@dataclasses.dataclass(frozen=True)
class Counts:
    """Of engine steps in which every request decodes: CPU seconds, emitted tokens, steps; of the whole run: drafts that
    the senior was to write, and those it agreed with."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    tested: int = 0
    passed: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


def measure(
    bench: Bench, batch: int, context: int, drafts: list[int], num_tokens: int, strategy: str = "word", repeats: int = 1
):
    """One row per number of drafts; the numbers take turns in every repeat, each between two turns of the senior."""
    dice = random.Random(1000 * batch + context)
    prompts = [[dice.randrange(2, VOCAB) for _ in range(context + (i * 5) % 16)] for i in range(batch)]
    bench.run(bench.max_drafts, prompts, 4)  # both models' prompts enter the prefix cache
    ways = {number: Counts() for number in drafts}
    around = {number: [Counts(), Counts()] for number in drafts}
    before = bench.run(0, prompts, num_tokens)
    for _ in range(repeats):
        for number in drafts:
            ways[number] += bench.run(number, prompts, num_tokens, strategy)
            after = bench.run(0, prompts, num_tokens)
            around[number] = [total + turn for total, turn in zip(around[number], (before, after), strict=True)]
            before = after
    for number, way in ways.items():
        first, second = (1e3 * single.seconds * batch / max(single.tokens, 1) for single in around[number])
        yield {
            "batch": batch,
            "context": context,
            "strategy": strategy,
            "drafts": number,
            "repeats": repeats,
            "single_ms": round((first + second) / 2, 1),
            "ratio": round(2e3 * way.seconds * batch / max(way.tokens, 1) / (first + second), 3),
            "singles_after_over_before": round(second / first, 3),
            "steps": way.steps,
            "per_round": round(way.tokens / max(way.steps, 1) / batch, 2),
            "acceptance": round(way.passed / max(way.tested, 1), 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--junior", choices=("equal", "quarter"), required=True)
    parser.add_argument("--agreement", type=float, default=0.93)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--drafts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--strategy", default="word")
    parser.add_argument("--tokens", type=int, default=48, help="per request; three times as many at batch 1")
    parser.add_argument("--repeats", type=int, default=4, help="over which a cell's time and tokens are summed")
    parser.add_argument("--kv-gib", type=float, default=3.0)
    parser.add_argument("--models", type=Path, help="keep the tuned pair here, or take it from here")
    parser.add_argument("--json", type=Path, required=True, help="rows are appended")
    options = parser.parse_args()

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.models or Path(scratch)
        if not (folder / "junior").is_dir():
            save_pair(folder, options.junior, options.agreement)
        bench = Bench(folder, max(options.drafts), max(options.batches), int(options.kv_gib * 2**30))
        for batch in options.batches:
            for context in options.contexts:
                num_tokens = options.tokens * (3 if batch == 1 else 1)
                cell = (batch, context, options.drafts, num_tokens, options.strategy, options.repeats)
                for row in measure(bench, *cell):
                    row = {"junior": options.junior} | row
                    print(json.dumps(row), flush=True)
                    with options.json.open("a") as out:
                        out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
