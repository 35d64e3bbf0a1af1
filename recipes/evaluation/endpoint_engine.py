"""An OpenAI-compatible endpoint: vLLM's server, or another."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from recipes.errors import EnvironmentProblem
from recipes.evaluation.sample_store import Sample
from recipes.evaluation.sampling import OnDone, Request, Sampling


class EndpointEngine:
    """A model behind a URL. The key comes from OPENAI_API_KEY."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        concurrency: int = 64,
        timeout: float = 600.0,
        max_retries: int = 6,
        extra_body: Mapping[str, Any] | None = None,
    ):
        """Name the endpoint.

        Args:
            url: with its path, such as http://host:8000/v1.
            model: name under which the endpoint serves the model.
            concurrency: most problems in flight.
            timeout: seconds for one request.
            max_retries: of a request that times out or meets a server error, with growing pauses.
            extra_body: further keys of every request.
        """
        self._url, self._model = url, model
        self._concurrency, self._timeout, self._max_retries = concurrency, timeout, max_retries
        self._extra_body = dict(extra_body or {})

    def generate(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request; problems that finish before a fault are handed over.

        Raises:
            EnvironmentProblem: the endpoint does not answer, or refuses a request.
        """
        asyncio.run(self._generate(requests, sampling, on_done))

    async def _generate(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        try:
            from openai import AsyncOpenAI, OpenAIError
        except ImportError as error:
            raise EnvironmentProblem("an endpoint needs openai: pip install 'verl-duets[judge]'") from error

        gate = asyncio.Semaphore(self._concurrency)
        async with AsyncOpenAI(
            base_url=self._url,
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
            timeout=self._timeout,
            max_retries=self._max_retries,
        ) as client:

            async def ask(request: Request) -> None:
                async with gate:
                    on_done(request.problem, await self._ask(client, request, sampling))

            try:
                async with asyncio.TaskGroup() as group:
                    for request in requests:
                        group.create_task(ask(request))
            except* OpenAIError as errors:
                first = errors.exceptions[0]
                raise EnvironmentProblem(
                    f"{self._url} failed: {type(first).__name__}: {first}; "
                    "finished problems are kept, run again to go on"
                ) from first

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
