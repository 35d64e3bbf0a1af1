"""Sampling text from a model: vLLM in this process, or any OpenAI-compatible server.

Both take the prompt as plain text or token ids (no chat template) and hand each request's texts over as soon as they
are there.
"""

import argparse
import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError
from reward_fns.result import Skip

FOUR_LINE_BREAKS = "\n\n\n\n"


@dataclass(frozen=True)
class Sampling:
    """How to sample: `n` texts per prompt, at most `max_tokens` tokens each."""

    n: int
    temperature: float
    top_p: float = 1.0
    max_tokens: int = 2048
    stop: tuple[str, ...] = (FOUR_LINE_BREAKS,)

    def __post_init__(self):
        if self.n < 1 or self.max_tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"cannot sample with {self}")


@dataclass(frozen=True)
class Request:
    """One prompt, as text or as token ids. `seed` makes the draw a function of the run and the key alone, where the
    server honours it."""

    key: str
    prompt: str | list[int]
    seed: int


OnResult = Callable[[Request, "list[str] | Skip"], None]


class Generator(Protocol):
    """Answers every request, in any order, through `on_result`."""

    def run(self, requests: Iterable[Request], on_result: OnResult) -> None: ...

    def prefix_cache_hit_rate(self) -> float | None: ...


def request_seed(run_seed: int, key: str) -> int:
    """A 31-bit seed from run and key."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}/{key}".encode()).digest()[:4], "big") >> 1


class EndpointGenerator:
    """An OpenAI-compatible server.

    Args:
        settings: where, and how long to try. sampling: how.
        chat: use `/v1/chat/completions` (OpenAI's chat models) with the prompt as the user's message.
    """

    def __init__(self, settings: EndpointSettings, sampling: Sampling, *, chat: bool = False):
        self.settings, self.sampling, self.chat = settings, sampling, chat

    def run(self, requests: Iterable[Request], on_result: OnResult) -> None:
        asyncio.run(self._run(iter(requests), on_result))

    async def _run(self, requests: Iterator[Request], on_result: OnResult) -> None:
        async with Endpoint(self.settings) as endpoint:

            async def work() -> None:
                for request in requests:
                    on_result(request, await self._ask(endpoint, request))

            await in_parallel(self.settings.concurrency, work)

    async def _ask(self, endpoint: Endpoint, request: Request) -> "list[str] | Skip":
        sampling = self.sampling
        how: dict[str, Any] = {
            "n": sampling.n,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed,
            "stop": list(sampling.stop) or None,
        }
        try:
            if self.chat:
                answer = await endpoint.chat([{"role": "user", "content": request.prompt}], **how)
            else:
                answer = await endpoint.complete(request.prompt, **how)
        except EndpointError as error:
            return Skip(f"{error.reason}: {error}")
        return answer.texts

    def prefix_cache_hit_rate(self) -> float | None:
        """Share of prompt tokens found in vLLM's prefix cache since the server started, None where it does not say."""

        async def page() -> str:
            async with Endpoint(self.settings) as endpoint:
                return await endpoint.get_text("/metrics")

        try:
            text = asyncio.run(page())
        except EndpointError:
            return None
        totals = {"queries": 0.0, "hits": 0.0}
        for line in text.splitlines():
            for name in totals:
                if line.startswith(f"vllm:prefix_cache_{name}_total"):
                    totals[name] += float(line.rsplit(" ", 1)[1])
        return totals["hits"] / totals["queries"] if totals["queries"] else None


async def in_parallel(count: int, work: Callable[[], Awaitable[None]]) -> None:
    """Run `count` workers side by side; the first exception ends them all."""
    tasks = [asyncio.ensure_future(work()) for _ in range(count)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class VLLMGenerator:
    """vLLM in this process.

    Args:
        model: path or Hub id. sampling: how. engine: further arguments of `vllm.LLM`. batch: requests handed to the
            engine at a time; records are written after each batch.
    """

    def __init__(self, model: str, sampling: Sampling, *, engine: dict | None = None, batch: int = 1024):
        from vllm import LLM
        from vllm.platforms import current_platform

        settings: dict[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": False}
        if current_platform.is_cpu():
            # After a part of a prompt, vLLM winds the generator of a seeded request back; a CPU generator cannot.
            settings["enable_chunked_prefill"] = False
        settings |= engine or {}
        print(f"loading {model} into vLLM", flush=True)
        self.llm = LLM(model=model, **settings)
        self.sampling, self.batch = sampling, batch

    def run(self, requests: Iterable[Request], on_result: OnResult) -> None:
        from vllm import SamplingParams

        iterator = iter(requests)
        while batch := list(islice(iterator, self.batch)):
            params = [
                SamplingParams(
                    n=self.sampling.n,
                    temperature=self.sampling.temperature,
                    top_p=self.sampling.top_p,
                    max_tokens=self.sampling.max_tokens,
                    stop=list(self.sampling.stop),
                    seed=request.seed,
                )
                for request in batch
            ]
            prompts = [
                request.prompt if isinstance(request.prompt, str) else {"prompt_token_ids": request.prompt}
                for request in batch
            ]
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
            for request, output in zip(batch, outputs, strict=True):
                on_result(request, [choice.text for choice in output.outputs])

    def prefix_cache_hit_rate(self) -> float | None:
        totals = {"vllm:prefix_cache_queries": 0.0, "vllm:prefix_cache_hits": 0.0}
        for metric in self.llm.get_metrics():
            if metric.name in totals:
                totals[metric.name] += metric.value
        queries, hits = totals.values()
        return hits / queries if queries else None


def add_arguments(
    parser: argparse.ArgumentParser, *, n: int, temperature: float, top_p: float, max_tokens: int = 2048
) -> None:
    """The options every generating command has, with this command's defaults."""
    model = parser.add_argument_group("model")
    model.add_argument("--model", required=True, help="path or id for vLLM, or the name the endpoint knows")
    model.add_argument("--endpoint", help="root of an OpenAI-compatible server; without it vLLM runs in this process")
    model.add_argument("--chat", action="store_true", help="endpoint: use chat completions")
    model.add_argument("--api-key-env", default="OPENAI_API_KEY", help="environment variable that holds the key")
    add_endpoint_arguments(model, timeout=600.0)
    model.add_argument("--engine", type=json.loads, default={}, help="vLLM: further arguments as a JSON object")
    model.add_argument("--batch", type=int, default=1024, help="vLLM: requests between two writes")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--n", type=int, default=n, help=f"texts per prompt (default {n})")
    sampling.add_argument("--temperature", type=float, default=temperature, help=f"(default {temperature})")
    sampling.add_argument("--top-p", type=float, default=top_p, help=f"(default {top_p})")
    sampling.add_argument("--max-tokens", type=int, default=max_tokens, help=f"(default {max_tokens})")
    sampling.add_argument("--stop", nargs="*", default=[FOUR_LINE_BREAKS], help="texts that end a sample")
    sampling.add_argument("--seed", type=int, default=0)


def sampling_options(args: argparse.Namespace) -> dict:
    """What the records of a generating command depend on, for its journal."""
    return {name: getattr(args, name) for name in ("model", "n", "temperature", "top_p", "max_tokens", "stop", "seed")}


def generator_from(args: argparse.Namespace) -> Generator:
    """The generator that the options of `add_arguments` describe."""
    sampling = Sampling(args.n, args.temperature, args.top_p, args.max_tokens, tuple(args.stop))
    if args.endpoint:
        return EndpointGenerator(
            endpoint_settings(args, args.model, key_variable=args.api_key_env), sampling, chat=args.chat
        )
    return VLLMGenerator(args.model, sampling, engine=args.engine, batch=args.batch)


def add_endpoint_arguments(group: argparse._ArgumentGroup, *, timeout: float) -> None:
    """How patiently an endpoint is asked."""
    group.add_argument("--concurrency", type=int, default=32, help="endpoint: requests in flight")
    group.add_argument("--timeout", type=float, default=timeout, help="endpoint: seconds for one attempt")
    group.add_argument("--attempts", type=int, default=4, help="endpoint: how often one request is sent at most")


def endpoint_settings(args: argparse.Namespace, model: str, *, key_variable: str | None) -> EndpointSettings:
    """The endpoint that the options of `add_endpoint_arguments` describe."""
    return EndpointSettings(
        args.endpoint, model, key_variable=key_variable, timeout=args.timeout, attempts=args.attempts,
        concurrency=args.concurrency, max_wait=20.0,
    )  # fmt: skip
