"""Two engines of the evaluation against one: `python tests/benchmarks/evaluation_engines.py --world outputs/toy`.

Three engines are loaded: one alone and two that share the work. Each has one processor core for all its processes; the
driver may use any. They write greedy responses to the same problems in turn. A repeat gives the ratio of the two times;
that both ways write the same responses is asserted.
"""

import argparse
import contextlib
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path

import ray

from recipes.common.sampling import Request, Sampling
from recipes.evaluation.benchmark import load
from recipes.evaluation.prompts import encode
from recipes.evaluation.settings import read_settings
from recipes.evaluation.sharded_engine import ShardedEngine
from recipes.evaluation.vllm_engine import VllmEngine


@contextlib.contextmanager
def only_core(core: int):
    """The engines made meanwhile get this processor core alone."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def pinned(model: str, options: dict) -> VllmEngine:
    """An engine all of whose processes run on the core that its threads are bound to."""
    os.sched_setaffinity(0, {int(os.environ["VLLM_CPU_OMP_THREADS_BIND"])})
    return VllmEngine(model, options)


def engines(model: str, options: dict, count: int) -> ShardedEngine:
    return ShardedEngine(partial(pinned, model, options), model, options, count)


def write(engine: ShardedEngine, requests: list[Request], sampling: Sampling) -> tuple[float, dict[str, list[str]]]:
    """Seconds, and the responses of each problem."""
    written: dict[str, list[str]] = {}

    def keep(problem, samples):
        written[problem] = [sample.response for sample in samples]

    began = time.perf_counter()
    engine.write(requests, sampling, keep)
    return time.perf_counter() - began, written


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=Path, default=Path("outputs/toy"))
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=4, help="how often each problem is asked")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    world = arguments.world.resolve()
    settings = read_settings(
        [
            f"models=[{world / 'model'}]",
            f"benchmarks=[{world / 'test.parquet'}]",
            f"limit={arguments.problems}",
            "engine.dtype=float32",
            "engine.max_model_len=256",
            "engine.kv_cache_memory_bytes=268435456",
            "engine.enforce_eager=true",
            "output_dir=unused",
        ]
    )
    model, options = str(world / "model"), dict(settings.engine)
    cores = sorted(os.sched_getaffinity(0))
    ray.init(include_dashboard=False, logging_level="error")
    with only_core(cores[0]):
        one = engines(model, options, 1)
    two = engines(model, options, 2)
    benchmark = load(settings.benchmarks[0], None, arguments.problems)
    sampling = Sampling(n=1, temperature=0.0, max_tokens=64)
    requests = [
        Request(f"{problem.id}/{turn}", encode(one.tokenizer, problem, benchmark, settings.prompt), 0)
        for turn in range(arguments.rounds)
        for problem in benchmark.problems
    ]
    for engine in (one, two):
        write(engine, requests[:40], sampling)
    ratios = []
    for _ in range(arguments.repeats):
        seconds_one, written_one = write(one, requests, sampling)
        seconds_two, written_two = write(two, requests, sampling)
        assert written_one == written_two, "the responses of one engine and of two differ"
        ratios.append(seconds_two / seconds_one)
        figures = {"one": round(seconds_one, 2), "two": round(seconds_two, 2), "ratio": round(ratios[-1], 3)}
        print(json.dumps(figures), flush=True)
    print(f"{len(requests)} responses, median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    run()
