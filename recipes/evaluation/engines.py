"""Engines in this process or on devices of their own: vLLM, the tandem decoder, and one engine for each device."""

import dataclasses
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from recipes.core import vllm_engine
from recipes.core.sampling import Request, Sampling
from recipes.errors import EnvironmentProblem
from recipes.evaluation.handoff import Part, Turn, author_spans, clipped
from recipes.evaluation.sample_store import SampledResponse, responses_of
from recipes.evaluation.sampling import OnDone
from reward_fns.completions import Answer, Completion
from vllm_patches.tandem.config import CONFIG_KEY, engine_arguments
from vllm_patches.tandem.outputs import AuthorshipError

DEFAULT_MEMORY_SHARE = 0.9


def memory_part(options: Mapping[str, Any], part: float) -> dict[str, Any]:
    """Options of one of several engines on the same device: its part of the memory that all of them may take.

    vLLM refuses to start when less than `gpu_memory_utilization` of the device is free; two engines with the share
    meant for one cannot both start.
    """
    whole = options.get("gpu_memory_utilization", DEFAULT_MEMORY_SHARE)
    return {**options, "gpu_memory_utilization": round(whole * part, 4)}


class VllmEngine(vllm_engine.VllmEngine):
    """A model in vLLM's offline engine."""

    def write(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request; `on_done` is called in the order in which problems finish."""
        self.generate(requests, sampling, lambda request, answer: on_done(request.key, self.responses(request, answer)))

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[str, list[SampledResponse]]]:
        """The n responses to every request, in the order in which problems finish."""
        finished: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def work() -> None:
            try:
                self.write(requests, sampling, lambda *found: finished.put(found))
                finished.put(None)
            except Exception as error:
                finished.put(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while (found := finished.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield found
        thread.join()

    def responses(self, request: Request, answer: Answer) -> list[SampledResponse]:
        """The responses to a problem, in the order of their indices."""
        return responses_of(request.key, answer)

    def write_parts(self, turns: Sequence[Turn], sampling: Sampling, separator: str) -> list[Part]:
        """One part of each response, up to and with the token in which `separator` ends.

        That token belongs to the part whole, whatever text it carries after the separator: what the other model reads
            are tokens.
        """
        parts: dict[str, Part] = {}

        def keep(request: Request, answer: Answer) -> None:
            parts[request.key] = part_of(answer, separator)

        self.generate(requests_of(turns), part_sampling(sampling, separator), keep)
        return [parts[str(number)] for number in range(len(turns))]

    def prompt_log_probs(self, token_ids: Sequence[Sequence[int]]) -> list[list[object]]:
        """What `response_log_probs` reads: for each sequence, the log-probability of every token of it."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        prompts = [{"prompt_token_ids": list(ids)} for ids in token_ids]
        return [output.prompt_logprobs for output in self.llm.generate(prompts, parameters, use_tqdm=False)]


def requests_of(turns: Sequence[Turn]) -> list[Request]:
    """The turns as requests, named by their positions."""
    return [Request(str(number), turn.token_ids, turn.seed, turn.most) for number, turn in enumerate(turns)]


def part_sampling(sampling: Sampling, separator: str) -> Sampling:
    """The sampling of one part: a single text that ends with `separator`, kept in it."""
    return dataclasses.replace(sampling, n=1, stop=(separator, *sampling.stop), include_stop=True)


def part_of(answer: Answer, separator: str) -> Part:
    """What one model wrote in its turn; the response is over when it ended by anything but the separator or length."""
    (written,) = answer.completions
    return Part(list(written.token_ids or ()), written.finish_reason == "stop" and written.stop_reason != separator)


class TandemEngine(VllmEngine):
    """A model and its partner in vLLM's offline engine."""

    def __init__(self, model: str, partner: str, options: Mapping[str, Any], prob_own: float, max_gap_tokens: int):
        """Load both.

        Args:
            model, partner: folders or hub ids; one vocabulary.
            options: those of `vllm.LLM`.
            prob_own: probability that a draw falls on the model.
            max_gap_tokens: most tokens between two draws.

        Raises:
            EnvironmentProblem: the engine refuses the pair, with its reason.
        """
        settings = {"junior_model": partner, "prob_senior": prob_own, "max_gap_tokens": max_gap_tokens}
        super().__init__(model, {**options, **engine_arguments(settings)})

    def extra_arguments(self, request: Request) -> dict[str, Any]:
        # The coins follow the problem, as its samples do.
        return {CONFIG_KEY: {"seed": request.seed}}

    def answer(self, output: Any) -> Answer:
        """The completions in one of vLLM's outputs, with the authors of their tokens."""
        answer = super().answer(output)
        masks = [found.authorship_mask for found in sorted(output.outputs, key=lambda found: found.index)]
        if any(mask is None for mask in masks):
            raise AuthorshipError(f"request {output.request_id}: a response came without its authors")
        return WrittenTogether(answer.completions, answer.prompt_tokens, answer.completion_tokens, tuple(masks))

    def responses(self, request: Request, answer: Answer) -> list[SampledResponse]:
        """The responses to a problem, with what the model wrote of each."""
        return [
            dataclasses.replace(sample, own_tokens=sum(mask), own_spans=self._spans(written, mask))
            for sample, written, mask in zip(
                super().responses(request, answer), answer.completions, answer.own, strict=True
            )
        ]

    def _spans(self, written: Completion, mask: Sequence[bool]) -> list[list[int]]:
        found = author_spans(
            written.token_ids,
            ["model" if own else "partner" for own in mask],
            "model",
            lambda ids: self.tokenizer.decode(ids, skip_special_tokens=True),
        )
        return clipped(found, len(written.text))


@dataclasses.dataclass(frozen=True)
class WrittenTogether(Answer):
    """Completions with, for each of their tokens, whether the model wrote it."""

    own: tuple[Sequence[bool], ...] = ()


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
