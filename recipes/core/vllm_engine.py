"""Sample with vLLM in this process: requests come from an iterator, completions are handed over as they finish."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from recipes.core.sampling import Engine, OnDone, Request, Sampling, hit_rate
from recipes.errors import EnvironmentProblem
from reward_fns.completions import Answer, Completion


class VllmEngine:
    """vLLM in this process.

    Args:
        model: folder or hub id.
        options: those of `vllm.LLM`.
        window: requests that vLLM holds at a time; the others stay in the iterator.

    Raises:
        EnvironmentProblem: vLLM cannot load the model.
    """

    def __init__(
        self,
        model: str,
        options: Mapping[str, Any] | None = None,
        *,
        window: int = 1024,
        template_kwargs: Mapping[str, Any] | None = None,
    ):
        from vllm import LLM
        from vllm.platforms import current_platform

        options = dict(options or {})
        if current_platform.is_cpu():
            # A seeded request whose prompt is split ends the engine: it rewinds a generator, which the CPU's refuses.
            # By itself vLLM fills nine tenths of the host's memory, and compiles for a minute or more.
            plain = {"enable_chunked_prefill": False, "enforce_eager": True, "kv_cache_memory_bytes": 4 << 30}
            options = plain | options
            # In this process: its engine and its worker would be two more that import all of vLLM, and may be orphaned.
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        try:
            self.llm = LLM(model=model, **options)
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            raise EnvironmentProblem(f"vLLM cannot load {model} with {options}: {error}") from error
        self.tokenizer = self.llm.get_tokenizer()
        self.model_length: int = self.llm.llm_engine.model_config.max_model_len
        self._window, self._sent = window, 0
        self._template_kwargs = dict(template_kwargs or {})

    def generate(self, requests: Iterable[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Answer every request, in the order in which they finish.

        Raises:
            EnvironmentProblem: the engine ended; what was handed over is kept.
            ValueError: a prompt that does not fit the model's context.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        engine, waiting = self.llm.llm_engine, iter(requests)
        under_way: dict[str, Request] = {}
        try:
            while True:
                for request in islice(waiting, self._window - len(under_way)):
                    self._sent += 1
                    under_way[str(self._sent)] = request
                    engine.add_request(str(self._sent), self._prompt(request), self._parameters(request, sampling))
                if not under_way:
                    return
                for output in engine.step():
                    if output.finished:
                        on_done(under_way.pop(output.request_id), self.answer(output))
        except EngineDeadError as error:
            raise EnvironmentProblem(
                "vLLM's engine ended, its own messages above say why; finished requests are kept, run again to go on"
            ) from error
        finally:
            if under_way:
                engine.abort_request(list(under_way))

    def extra_arguments(self, request: Request) -> dict[str, Any] | None:
        """Further arguments of a request, for engines that derive from this one."""
        return None

    def answer(self, output: Any) -> Answer:
        """Read the completions in one of vLLM's outputs."""
        completions = sorted(output.outputs, key=lambda completion: completion.index)
        return Answer(
            [
                Completion(one.text, str(one.finish_reason), one.stop_reason, token_ids=tuple(one.token_ids))
                for one in completions
            ],
            len(output.prompt_token_ids),
            sum(len(one.token_ids) for one in completions),
        )

    def prefix_cache_hit_rate(self) -> float | None:
        """Share of prompt tokens found in the prefix cache; None without statistics (`disable_log_stats=False`)."""
        try:
            metrics = self.llm.get_metrics()
        except AssertionError:
            return None
        return hit_rate((metric.name, metric.value) for metric in metrics if hasattr(metric, "value"))

    def _prompt(self, request: Request) -> dict[str, Any]:
        if messages := request.messages:
            rendered = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=True, **self._template_kwargs
            )
            return {"prompt_token_ids": rendered["input_ids"]}
        if isinstance(request.prompt, str):
            return {"prompt": request.prompt}
        return {"prompt_token_ids": list(request.prompt)}

    def _parameters(self, request: Request, sampling: Sampling) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            n=sampling.n,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=request.max_tokens or sampling.max_tokens,
            stop=list(sampling.stop),
            include_stop_str_in_output=sampling.include_stop,
            seed=request.seed if sampling.temperature > 0 else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=self.extra_arguments(request),
        )


class Gathered:
    """Let the tasks of an event loop share a blocking engine; requests that wait together form one batch.

    Args:
        engine: such as :class:`VllmEngine`; used from one thread at a time.
        sampling: of every request.
    """

    def __init__(self, engine: Engine, sampling: Sampling):
        self._engine, self._sampling = engine, sampling
        self._waiting: list[tuple[Request, asyncio.Future]] = []
        self._worker: asyncio.Task | None = None

    async def ask(self, request: Request) -> Answer:
        """Sample the completions of one request.

        Raises:
            Exception: what the engine raised; every request that it was answering gets it.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def close(self) -> None:
        """Wait until the engine is idle."""
        if self._worker is not None:
            await self._worker

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            # Tasks that are about to ask join this batch.
            await asyncio.sleep(0)
            batch, self._waiting = self._waiting, []
            futures = {id(request): future for request, future in batch}

            def on_done(request: Request, found: Any, futures: dict[int, asyncio.Future] = futures) -> None:
                loop.call_soon_threadsafe(_resolve, futures[id(request)], found)

            try:
                requests = [request for request, _ in batch]
                await asyncio.to_thread(self._engine.generate, requests, self._sampling, on_done)
            except Exception as error:
                # Raised in every task that waits for this batch; the next batch may succeed.
                for _, future in batch:
                    _resolve(future, error)


def _resolve(future: asyncio.Future, answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
