"""A model behind an OpenAI-compatible endpoint: vLLM's server, or another."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recipes.common import sampling as shared
from recipes.common.sampling import Request, Sampling
from recipes.errors import EnvironmentProblem
from recipes.evaluation.handoff import Part, Turn
from recipes.evaluation.sample_store import responses_of
from recipes.evaluation.sampling import OnDone
from recipes.evaluation.vllm_engine import part_of, part_sampling, requests_of
from reward_fns.completions import Answer
from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError


class EndpointEngine(shared.EndpointEngine):
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
            tokenizer: the model's, for prompts as token ids.
            concurrency: most problems in flight.
            timeout: seconds for one request.
            max_retries: of a request that times out or meets a server error, with growing pauses.
            extra_body: further keys of every request.
        """
        settings = EndpointSettings(url, model, timeout=timeout, attempts=max_retries + 1, concurrency=concurrency)
        super().__init__(settings, extra_body=extra_body)
        self.tokenizer = tokenizer

    def write(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request; problems that finish before a fault are handed over.

        Raises:
            EnvironmentProblem: the endpoint does not answer, or refuses a request.
        """

        def keep(request: Request, found: Answer | EndpointError) -> None:
            if isinstance(found, EndpointError):
                raise found
            on_done(request.key, responses_of(request.key, found))

        _explained(lambda: self.generate(requests, sampling, keep))

    @property
    def model_length(self) -> int:
        """Tokens of the context window, as vLLM's server states them.

        Raises:
            EnvironmentProblem: the endpoint does not answer, does not serve the model, or does not state it.
        """
        return _explained(lambda: super(EndpointEngine, self).model_length)

    def write_parts(self, turns: Sequence[Turn], sampling: Sampling, separator: str) -> list[Part]:
        """One part of each response, up to and with the token in which `separator` ends, as `VllmEngine` has it.

        Raises:
            EnvironmentProblem: the endpoint does not answer, or is no vLLM server, which alone takes token ids.
        """
        chosen = part_sampling(sampling, separator)

        async def ask(endpoint: Endpoint) -> list[Answer]:
            return await asyncio.gather(*(self.ask(endpoint, request, chosen) for request in requests_of(turns)))

        answers = _explained(lambda: self.run(ask))
        if any(answer.completions[0].token_ids is None for answer in answers):
            raise EnvironmentProblem(
                f"{self.settings.url} answers without token ids, which vLLM's server gives; no handoff"
            )
        return [part_of(answer, separator) for answer in answers]


def _explained(work: Callable[[], Any]) -> Any:
    """What `work` returns; a fault of the endpoint says what to do."""
    try:
        return work()
    except EndpointError as error:
        raise EnvironmentProblem(f"{error}; finished problems are kept, run again to continue") from error
