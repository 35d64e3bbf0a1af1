"""Sample texts from a model: behind an OpenAI-compatible endpoint here, by vLLM in this process in `vllm_engine`.

Both take requests from an iterator, in any number, and hand each one's completions over as soon as they are finished,
so that a killed command has lost no finished work.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from recipes.core.settings import Count, NonNegative, PositiveShare
from recipes.errors import ConfigError, EnvironmentProblem
from reward_fns.completions import Answer
from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Sampling:
    """How texts are sampled.

    Attributes:
        n: texts per prompt.
        temperature: 0 is greedy.
        top_k: -1 for all tokens.
        max_tokens: most tokens of a text.
        stop: texts that end a sample; they are no part of it unless `include_stop` is set.
    """

    n: Count = 1
    temperature: NonNegative = 1.0
    top_p: PositiveShare = 1.0
    top_k: int = -1
    max_tokens: Count = 2048
    stop: tuple[str, ...] = ()
    include_stop: bool = False

    def __post_init__(self):
        if self.n < 1 or self.max_tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ConfigError(f"expected n and max_tokens >= 1, temperature >= 0 and top_p in (0, 1], found {self}")
        if self.temperature == 0 and self.n > 1:
            raise ConfigError(f"n={self.n} at temperature 0 repeats one text; raise the temperature or ask for one")


@dataclass(frozen=True)
class Request:
    """One prompt.

    Attributes:
        key: names the request among those of a command.
        prompt: a text, token ids, or the messages of a conversation, to which the model's chat template is applied.
        seed: makes the draw a function of the run and the key alone, where the engine honours it.
        max_tokens: limit of this request; None for that of the sampling settings.
    """

    key: str
    prompt: str | Sequence[int] | Messages
    seed: int
    max_tokens: int | None = None

    @property
    def messages(self) -> list[dict[str, str]] | None:
        """The conversation, None when the prompt is a text or token ids."""
        if isinstance(self.prompt, str) or not self.prompt or not isinstance(self.prompt[0], Mapping):
            return None
        return [dict(message) for message in self.prompt]


OnDone = Callable[[Request, "Answer | EndpointError"], None]
"""Called with a request and its completions, or with the reason why it has none while others may succeed."""


class Engine(Protocol):
    """Samples completions."""

    def generate(self, requests: Iterable[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Answer every request, in any order.

        Raises:
            EnvironmentProblem: the engine ended, or cannot be used.
            EndpointError: the endpoint refuses every request.
        """

    def prefix_cache_hit_rate(self) -> float | None:
        """Share of prompt tokens found in the prefix cache, None where the engine has no statistics."""


def request_seed(run_seed: int, key: str) -> int:
    """Derive a seed below 2^31 from the run's seed and the request's key."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}/{key}".encode()).digest()[:4], "big") >> 1


class EndpointEngine:
    """A model behind a URL.

    Args:
        settings: where, which model, how many requests at a time.
        chat: send a prompt that is a text as a user's message, as chat models of OpenAI need it.
        extra_body: further keys of every request.
    """

    def __init__(self, settings: EndpointSettings, *, chat: bool = False, extra_body: Mapping[str, Any] | None = None):
        self.settings, self._chat, self._extra_body = settings, chat, dict(extra_body or {})

    def generate(self, requests: Iterable[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Answer every request; `on_done` gets an error where one request fails.

        Raises:
            EndpointError: the endpoint refuses every request.
        """

        async def generate(endpoint: Endpoint) -> None:
            async def work(request: Request) -> None:
                try:
                    answer: Answer | EndpointError = await self.ask(endpoint, request, sampling)
                except EndpointError as error:
                    if error.kind == "refused":
                        raise
                    answer = error
                on_done(request, answer)

            await in_parallel(iter(requests), self.settings.concurrency, work)

        self.run(generate)

    def run(self, work: Callable[[Endpoint], Awaitable[Any]]) -> Any:
        """Run `work` with a connection that is closed afterwards."""

        async def with_endpoint() -> Any:
            async with Endpoint(self.settings) as endpoint:
                return await work(endpoint)

        return asyncio.run(with_endpoint())

    async def ask(self, endpoint: Endpoint, request: Request, sampling: Sampling) -> Answer:
        """Ask for the completions of one request; a vLLM server that is asked by token ids returns token ids.

        Raises:
            EndpointError: no usable answer.
        """
        body = {
            "n": sampling.n,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k if sampling.top_k > 0 else None,
            "max_tokens": request.max_tokens or sampling.max_tokens,
            "stop": list(sampling.stop) or None,
            "include_stop_str_in_output": sampling.include_stop or None,
            "seed": request.seed if sampling.temperature > 0 else None,
        }
        messages = request.messages
        if messages is None and self._chat:
            messages = [{"role": "user", "content": request.prompt}]
        if messages is not None:
            return await endpoint.chat(messages, **body | self._extra_body)
        if not isinstance(request.prompt, str):
            body["return_token_ids"] = True
        return await endpoint.complete(request.prompt, **body | self._extra_body)

    @property
    def model_length(self) -> int:
        """Tokens of the context window, as vLLM's server gives them.

        Raises:
            EndpointError: no usable answer.
            EnvironmentProblem: the endpoint does not serve the model, or does not give the length.
        """
        served = self.run(lambda endpoint: endpoint.served_models())
        if self.settings.model not in served:
            raise EnvironmentProblem(
                f"{self.settings.url} serves {', '.join(sorted(served))}, not {self.settings.model}"
            )
        if served[self.settings.model] is None:
            raise EnvironmentProblem(f"{self.settings.url} does not give its context length, as vLLM's server does")
        return served[self.settings.model]

    def prefix_cache_hit_rate(self) -> float | None:
        """Share of prompt tokens found in vLLM's prefix cache since the server started, None without statistics."""
        try:
            text = self.run(lambda endpoint: endpoint.get_text("/metrics"))
        except EndpointError:
            return None
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("vllm:prefix_cache_")]
        return hit_rate((name.partition("_total")[0], float(value)) for name, _, value in lines if "_total" in name)


async def in_parallel(items: Iterator[Any], count: int, work: Callable[[Any], Awaitable[None]]) -> None:
    """Do `work` for every item, `count` at a time, items taken one by one; the first exception ends all."""

    async def worker() -> None:
        for item in items:
            await work(item)

    tasks = [asyncio.ensure_future(worker()) for _ in range(count)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def hit_rate(metrics: Iterable[tuple[str, float]]) -> float | None:
    """Compute the share of queries that hit vLLM's prefix cache from its counters; None without queries."""
    totals = {"vllm:prefix_cache_queries": 0.0, "vllm:prefix_cache_hits": 0.0}
    for name, value in metrics:
        if name in totals:
            totals[name] += value
    queries, hits = totals.values()
    return hits / queries if queries else None
