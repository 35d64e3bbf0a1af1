"""Several engines of one model as Ray actors, the problems split among them."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from recipes.core.sampling import Request, Sampling
from recipes.errors import EnvironmentProblem
from recipes.evaluation.sample_store import SampledResponse
from recipes.evaluation.sampling import OnDone
from recipes.evaluation.vllm_engine import VllmEngine


def shards(requests: Sequence[Request], count: int) -> list[list[Request]]:
    """The requests dealt out in turn, so that long problems, which often stand together, go to different engines."""
    return [list(requests[start::count]) for start in range(count)]


def core_ranges(cores: Sequence[int], count: int) -> list[str]:
    """Processor cores of each engine, as vLLM's CPU backend takes them: the cores in as many equal runs.

    Raises:
        EnvironmentProblem: fewer cores than engines.
    """
    if len(cores) < count:
        raise EnvironmentProblem(f"engines={count} needs as many processor cores, found {len(cores)}")
    size = len(cores) // count
    return [",".join(map(str, cores[start * size : (start + 1) * size])) for start in range(count)]


class EngineActor:
    """One engine in a process of its own; becomes a Ray actor."""

    def __init__(self, build: Callable[[], VllmEngine]):
        """Load the engine."""
        self._engine = build()

    def process(self) -> int:
        """Id of the process, known when the engine is loaded."""
        return os.getpid()

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[str, list[SampledResponse]]]:
        """Responses as their problems finish."""
        yield from self._engine.stream(requests, sampling)


class ShardedEngine:
    """As `VllmEngine.write`, with the problems split among several engines."""

    def __init__(self, build: Callable[[], VllmEngine], model: str, options: Mapping[str, Any], count: int):
        """Start the engines.

        Args:
            build: makes one engine; called in the process of each.
            model: folder or hub id whose tokenizer makes the prompts.
            options: those of `vllm.LLM`; one engine takes `tensor_parallel_size` devices.
            count: number of engines.

        Raises:
            EnvironmentProblem: not enough devices or cores, or an engine that cannot be loaded.
        """
        import ray
        from transformers import AutoTokenizer
        from vllm.platforms import current_platform

        self.tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=bool(options.get("trust_remote_code")))
        if not ray.is_initialized():
            ray.init(address=os.environ.get("RAY_ADDRESS"), include_dashboard=False, logging_level="error")
        environments: list[dict[str, str]] = [{} for _ in range(count)]
        devices = int(options.get("tensor_parallel_size", 1))
        if current_platform.is_cpu():
            devices = 0
            ranges = core_ranges(sorted(os.sched_getaffinity(0)), count)
            environments = [
                {"VLLM_CPU_OMP_THREADS_BIND": cores, "OMP_NUM_THREADS": str(len(cores.split(",")))} for cores in ranges
            ]
        elif ray.cluster_resources().get("GPU", 0) < count * devices:
            found = ray.cluster_resources().get("GPU", 0)
            raise EnvironmentProblem(f"engines={count} needs {count * devices} devices, found {found:g}")
        remote = ray.remote(EngineActor)
        self._actors = [
            remote.options(num_cpus=0, num_gpus=devices, runtime_env={"env_vars": environment}).remote(build)
            for environment in environments
        ]
        try:
            self.processes: list[int] = ray.get([actor.process.remote() for actor in self._actors])
        except ray.exceptions.RayError as error:
            self.close()
            raise EnvironmentProblem(f"one of {count} engines cannot be loaded: {_last_line(error)}") from error

    def write(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request; `on_done` is called in the order in which problems finish.

        When an engine fails, the others finish their problems first.

        Raises:
            EnvironmentProblem: an engine failed.
        """
        import ray

        streams = {
            actor.stream.options(num_returns="streaming").remote(shard, sampling): position
            for position, (actor, shard) in enumerate(
                zip(self._actors, shards(requests, len(self._actors)), strict=True)
            )
            if shard
        }
        failed: dict[int, Exception] = {}
        while streams:
            (ready,), _ = ray.wait(list(streams), num_returns=1)
            try:
                problem, samples = ray.get(next(ready))
            except StopIteration:
                del streams[ready]
            except ray.exceptions.RayError as error:
                failed[streams.pop(ready)] = error
            else:
                on_done(problem, samples)
        if failed:
            position, error = next(iter(failed.items()))
            raise EnvironmentProblem(
                f"{len(failed)} of {len(self._actors)} engines failed, engine {position} with: {_last_line(error)}; "
                "finished problems are kept, run again to continue"
            ) from error

    def close(self) -> None:
        """Stop the engines."""
        import ray

        for actor in self._actors:
            ray.kill(actor)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
