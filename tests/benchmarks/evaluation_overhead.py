"""The evaluation against bare vLLM: `python tests/benchmarks/evaluation_overhead.py --world outputs/toy`.

One process, one loaded engine, three repeats in turn. The time of a whole evaluation (prompts, responses, grades,
tables, plots; the engine's start left out) is divided by the time of `vllm.LLM.generate` on the same prompts with the
same seeds plus the grader's processor seconds over the machine's cores.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

from vllm import SamplingParams

from recipes.evaluation import generation, main
from recipes.evaluation.benchmark import load
from recipes.evaluation.prompts import encode
from recipes.evaluation.sampling import problem_seed, resolve
from recipes.evaluation.settings import read_settings

engines = {}


def loaded_once(model, options, build=generation.VllmEngine):
    """The engine of a model; later evaluations find it loaded."""
    if model not in engines:
        engines[model] = build(model, options)
    return engines[model]


class GraderClock:
    """The grader, with the processor seconds of its thread and of its worker processes added up."""

    def __init__(self, grade):
        self.grade, self.seconds = grade, 0.0

    def __call__(self, *arguments):
        began = time.thread_time() + children()
        try:
            return self.grade(*arguments)
        finally:
            self.seconds += time.thread_time() + children() - began


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(world: Path, problems: int, n: int) -> dict[str, float]:
    """Seconds of one evaluation, of the bare generation, and of the grader."""
    with tempfile.TemporaryDirectory() as folder:
        settings = read_settings(
            [
                f"models=[{world / 'model'}]",
                f"benchmarks=[{world / 'test.parquet'}]",
                f"limit={problems}",
                f"sampling.n={n}",
                "sampling.temperature=1.0",
                "sampling.max_tokens=32",
                f"k=[1,{n}]",
                "engine.dtype=float32",
                "engine.max_model_len=256",
                "engine.kv_cache_memory_bytes=268435456",
                "engine.enforce_eager=true",
                f"output_dir={folder}",
            ]
        )
        engine = loaded_once(str(world / "model"), settings.engine)
        grader = GraderClock(main._grade)
        main._grade = grader
        began = time.perf_counter()
        main.evaluate(settings)
        whole = time.perf_counter() - began
        main._grade = grader.grade
        grading = grader.seconds / (os.cpu_count() or 1)

        benchmark = load(settings.benchmarks[0], None, problems)
        prompts = [encode(engine.tokenizer, problem, benchmark, settings.prompt) for problem in benchmark.problems]
        sampling = resolve(settings.sampling, None, benchmark.name)
        parameters = [
            SamplingParams(
                n=n,
                temperature=1.0,
                max_tokens=32,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=problem_seed(settings.sampling["seed"], benchmark.name, problem.id),
            )
            for problem in benchmark.problems
        ]
        began = time.perf_counter()
        engine.llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], parameters, use_tqdm=False)
        bare = time.perf_counter() - began
    return {"evaluation": whole, "generate": bare, "grading": grading, "ratio": whole / (bare + grading)}


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=Path, default=Path("outputs/toy"))
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    generation.VllmEngine = loaded_once
    measure(arguments.world.resolve(), 20, 2)
    rows = [measure(arguments.world.resolve(), arguments.problems, arguments.n) for _ in range(arguments.repeats)]
    for row in rows:
        print(json.dumps({name: round(value, 3) for name, value in row.items()}))
    print(f"median ratio {statistics.median(row['ratio'] for row in rows):.3f}")


if __name__ == "__main__":
    run()
