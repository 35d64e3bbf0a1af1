"""An OpenAI-compatible endpoint: vLLM's server, or another."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from recipes.errors import EnvironmentProblem
from recipes.evaluation.handoff import Part, Turn
from recipes.evaluation.sample_store import Sample
from recipes.evaluation.sampling import OnDone, Request, Sampling


class EndpointEngine:
    """A model behind a URL. The key comes from OPENAI_API_KEY."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        tokenizer: Any = None,
        concurrency: int = 64,
        timeout: float = 600.0,
        max_retries: int = 6,
        extra_body: Mapping[str, Any] | None = None,
    ):
        """Name the endpoint.

        Args:
            url: with its path, such as http://host:8000/v1.
            model: name under which the endpoint serves the model.
            tokenizer: the model's, for who asks by token ids.
            concurrency: most problems in flight.
            timeout: seconds for one request.
            max_retries: of a request that times out or meets a server error, with growing pauses.
            extra_body: further keys of every request.
        """
        self._url, self._model, self.tokenizer = url, model, tokenizer
        self._concurrency, self._timeout, self._max_retries = concurrency, timeout, max_retries
        self._extra_body = dict(extra_body or {})

    def generate(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request; problems that finish before a fault are handed over.

        Raises:
            EnvironmentProblem: the endpoint does not answer, or refuses a request.
        """
        asyncio.run(self._generate(requests, sampling, on_done))

    @property
    def model_length(self) -> int:
        """Tokens of the context window, as vLLM's server tells them.

        Raises:
            EnvironmentProblem: the endpoint does not answer, does not serve the model, or does not tell.
        """
        return asyncio.run(self._with_client(self._ask_model_length))

    def write_parts(self, turns: Sequence[Turn], sampling: Sampling, separator: str) -> list[Part]:
        """One part of each response, up to and with the token in which `separator` ends, as `VllmEngine` has it.

        Raises:
            EnvironmentProblem: the endpoint does not answer, or is no vLLM server, which alone speaks in token ids.
        """

        async def write(client: Any) -> list[Part]:
            return await self._each(turns, lambda turn: self._ask_part(client, turn, sampling, separator))

        return asyncio.run(self._with_client(write))

    async def _generate(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        async def generate(client: Any) -> None:
            async def ask(request: Request) -> None:
                on_done(request.problem, await self._ask(client, request, sampling))

            await self._each(requests, ask)

        await self._with_client(generate)

    async def _each(self, items: Iterable[Any], work: Callable[[Any], Awaitable[Any]]) -> list[Any]:
        """What `work` gives for every item, in order; at most `concurrency` at once, and the first fault ends all."""
        gate = asyncio.Semaphore(self._concurrency)

        async def gated(item: Any) -> Any:
            async with gate:
                return await work(item)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(gated(item)) for item in items]
        return [task.result() for task in tasks]

    async def _with_client(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        try:
            from openai import AsyncOpenAI, OpenAIError
        except ImportError as error:
            raise EnvironmentProblem("an endpoint needs openai: pip install 'verl-duets[judge]'") from error

        async with AsyncOpenAI(
            base_url=self._url,
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
            timeout=self._timeout,
            max_retries=self._max_retries,
        ) as client:
            try:
                return await work(client)
            except (OpenAIError, ExceptionGroup) as errors:
                first = _first(errors)
                if not isinstance(first, OpenAIError):
                    raise first from None
                raise EnvironmentProblem(
                    f"{self._url} failed: {type(first).__name__}: {first}; "
                    "finished problems are kept, run again to go on"
                ) from first

    async def _ask_model_length(self, client: Any) -> int:
        served = {model.id: getattr(model, "max_model_len", None) async for model in client.models.list()}
        if self._model not in served:
            raise EnvironmentProblem(f"{self._url} serves {', '.join(sorted(served))}, not {self._model}")
        if served[self._model] is None:
            raise EnvironmentProblem(f"{self._url} does not tell how long its context is, as vLLM's server does")
        return served[self._model]

    async def _ask_part(self, client: Any, turn: Turn, sampling: Sampling, separator: str) -> Part:
        body = {"return_token_ids": True, "include_stop_str_in_output": True} | self._extra_body
        if sampling.top_k > 0:
            body["top_k"] = sampling.top_k
        answer = await client.completions.create(
            model=self._model,
            prompt=turn.token_ids,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=turn.most,
            stop=[separator, *sampling.stop],
            seed=turn.seed if sampling.temperature > 0 else None,
            extra_body=body,
        )
        (choice,) = answer.choices
        token_ids = getattr(choice, "token_ids", None)
        if token_ids is None:
            raise EnvironmentProblem(f"{self._url} answers without token ids, which vLLM's server gives; no handoff")
        return Part(list(token_ids), choice.finish_reason == "stop" and choice.stop_reason != separator)

    async def _ask(self, client: Any, request: Request, sampling: Sampling) -> list[Sample]:
        common = {
            "model": self._model,
            "n": sampling.n,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stop": list(sampling.stop) or None,
            "seed": request.seed if sampling.temperature > 0 else None,
        }
        body = dict(self._extra_body)
        if sampling.top_k > 0:
            body["top_k"] = sampling.top_k
        if request.token_ids is not None:
            answer = await client.completions.create(
                prompt=request.token_ids, extra_body={"return_token_ids": True} | body, **common
            )
            texts = [choice.text for choice in answer.choices]
        else:
            answer = await client.chat.completions.create(messages=request.messages, extra_body=body, **common)
            texts = [choice.message.content or "" for choice in answer.choices]
        if len(texts) != sampling.n:
            raise EnvironmentProblem(f"{self._url} gave {len(texts)} responses, expected n={sampling.n}")
        return [
            Sample(
                problem=request.problem,
                sample=number,
                response=text,
                tokens=_length(choice, answer, sampling.n),
                finish_reason=str(choice.finish_reason),
                prompt_tokens=answer.usage.prompt_tokens if answer.usage else -1,
            )
            for number, (text, choice) in enumerate(zip(texts, answer.choices, strict=True))
        ]


def _length(choice: Any, answer: Any, n: int) -> int:
    ids = getattr(choice, "token_ids", None)
    if ids is not None:
        return len(ids)
    return answer.usage.completion_tokens if n == 1 and answer.usage else -1


def _first(error: Exception) -> Exception:
    """The error itself, or the first single one of a group, which may hold groups."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
