"""A model behind an OpenAI-compatible endpoint: vLLM's server, or another."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from recipes.errors import EnvironmentProblem
from recipes.evaluation.handoff import Part, Turn
from recipes.evaluation.sample_store import Sample
from recipes.evaluation.sampling import OnDone, Request, Sampling
from reward_fns.completions import Answer
from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError


class EndpointEngine:
    """A model behind a URL, asked through `reward_fns.endpoint`. The key comes from OPENAI_API_KEY."""

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
        self._settings = EndpointSettings(
            url, model, timeout=timeout, attempts=max_retries + 1, concurrency=concurrency
        )
        self.tokenizer = tokenizer
        self._extra_body = dict(extra_body or {})

    def generate(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request; problems that finish before a fault are handed over.

        Raises:
            EnvironmentProblem: the endpoint does not answer, or refuses a request.
        """

        async def generate(endpoint: Endpoint) -> None:
            async def ask(request: Request) -> None:
                on_done(request.problem, await self._ask(endpoint, request, sampling))

            await _each(requests, ask)

        self._run(generate)

    @property
    def model_length(self) -> int:
        """Tokens of the context window, as vLLM's server tells them.

        Raises:
            EnvironmentProblem: the endpoint does not answer, does not serve the model, or does not tell.
        """
        served = self._run(lambda endpoint: endpoint.served_models())
        url, model = self._settings.url, self._settings.model
        if model not in served:
            raise EnvironmentProblem(f"{url} serves {', '.join(sorted(served))}, not {model}")
        if served[model] is None:
            raise EnvironmentProblem(f"{url} does not tell how long its context is, as vLLM's server does")
        return served[model]

    def write_parts(self, turns: Sequence[Turn], sampling: Sampling, separator: str) -> list[Part]:
        """One part of each response, up to and with the token in which `separator` ends, as `VllmEngine` has it.

        Raises:
            EnvironmentProblem: the endpoint does not answer, or is no vLLM server, which alone speaks in token ids.
        """
        return self._run(
            lambda endpoint: _each(turns, lambda turn: self._ask_part(endpoint, turn, sampling, separator))
        )

    def _run(self, work: Callable[[Endpoint], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with Endpoint(self._settings) as endpoint:
                return await work(endpoint)

        try:
            return asyncio.run(run())
        except (EndpointError, ExceptionGroup) as errors:
            first = _first(errors)
            if not isinstance(first, EndpointError):
                raise first from None
            raise EnvironmentProblem(f"{first}; finished problems are kept, run again to continue") from first

    def _body(self, sampling: Sampling, seed: int) -> dict[str, Any]:
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k if sampling.top_k > 0 else None,
            "seed": seed if sampling.temperature > 0 else None,
        }

    async def _ask_part(self, endpoint: Endpoint, turn: Turn, sampling: Sampling, separator: str) -> Part:
        answer: Answer = await endpoint.complete(
            turn.token_ids,
            **self._body(sampling, turn.seed),
            max_tokens=turn.most,
            stop=[separator, *sampling.stop],
            return_token_ids=True,
            include_stop_str_in_output=True,
            **self._extra_body,
        )
        (written,) = answer.completions
        if written.token_ids is None:
            raise EnvironmentProblem(
                f"{self._settings.url} answers without token ids, which vLLM's server gives; no handoff"
            )
        return Part(list(written.token_ids), written.finish_reason == "stop" and written.stop_reason != separator)

    async def _ask(self, endpoint: Endpoint, request: Request, sampling: Sampling) -> list[Sample]:
        body = self._body(sampling, request.seed) | {
            "n": sampling.n,
            "max_tokens": sampling.max_tokens,
            "stop": list(sampling.stop) or None,
        }
        answer: Answer
        if request.token_ids is not None:
            answer = await endpoint.complete(request.token_ids, **body, return_token_ids=True, **self._extra_body)
        else:
            answer = await endpoint.chat(request.messages or [], **body, **self._extra_body)
        alone = answer.completion_tokens if sampling.n == 1 else None
        return [
            Sample(
                problem=request.problem,
                sample=number,
                response=written.text,
                tokens=len(written.token_ids) if written.token_ids is not None else -1 if alone is None else alone,
                finish_reason=written.finish_reason,
                prompt_tokens=-1 if answer.prompt_tokens is None else answer.prompt_tokens,
            )
            for number, written in enumerate(answer.completions)
        ]


async def _each(items: Iterable[Any], work: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """What `work` gives for every item, in order; the first fault ends all."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(item)) for item in items]
    return [task.result() for task in tasks]


def _first(error: Exception) -> Exception:
    """The error itself, or the first single one of a group, which may hold groups."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
