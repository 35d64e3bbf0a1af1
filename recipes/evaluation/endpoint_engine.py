"""A model behind OpenAI-compatible endpoints: vLLM's server, or another."""

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from recipes.core import sampling as shared
from recipes.core.sampling import Request, Sampling
from recipes.errors import EnvironmentProblem
from recipes.evaluation.engines import part_of, part_sampling, requests_of
from recipes.evaluation.handoff import Part, Turn
from recipes.evaluation.sample_store import responses_of
from recipes.evaluation.sampling import OnDone
from reward_fns.completions import Answer
from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError

FAILURES = 3


@dataclass
class Member:
    """One endpoint of a pool.

    Attributes:
        name: its address, for messages.
        ask: sends one request.
        most: most requests under way.
        limit: of requests under way now; between 1 and `most`.
        fault: why it was left out; None while it is asked.
    """

    name: str
    ask: Callable[[Request], Awaitable[Answer]]
    most: int
    limit: float = field(init=False)
    failures: int = field(init=False, default=0)
    under_way: int = field(init=False, default=0)
    fault: EndpointError | None = field(init=False, default=None)

    def __post_init__(self):
        self.limit = float(self.most)

    def answered(self) -> None:
        """Note an answer."""
        self.failures, self.limit = 0, min(self.most, self.limit + 1)

    def failed(self, error: EndpointError) -> None:
        """Note a request that got no answer."""
        self.failures, self.limit = self.failures + 1, max(1.0, self.limit / 2)
        if error.kind == "refused" or self.failures >= FAILURES:
            self.fault = error


async def spread(
    requests: Iterable[Request],
    members: Sequence[Member],
    on_done: Callable[[Request, Answer], None],
    warn: Callable[[Member], None],
) -> None:
    """Answer every request by one of the members, in any order.

    Args:
        on_done: called once for each request.
        warn: called when a member is left out while others go on.

    Raises:
        EndpointError: a request that no endpoint would answer, or the last fault when every member is left out.
    """
    waiting = deque(requests)
    tasks: dict[asyncio.Task[Answer], tuple[Member, Request]] = {}

    def begin() -> None:
        while waiting and (free := [one for one in members if one.fault is None and one.under_way < int(one.limit)]):
            member, request = min(free, key=lambda one: one.under_way / one.limit), waiting.popleft()
            member.under_way += 1
            tasks[asyncio.ensure_future(member.ask(request))] = member, request

    def give_back(task: asyncio.Task[Answer]) -> Request:
        member, request = tasks.pop(task)
        member.under_way -= 1
        return request

    try:
        while waiting or tasks:
            begin()
            if not tasks:
                raise next(error for member in reversed(members) if (error := member.fault))
            for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                if task not in tasks:
                    continue
                member, request = tasks[task][0], give_back(task)
                try:
                    answer = task.result()
                except EndpointError as error:
                    if error.kind == "request":
                        raise
                    waiting.appendleft(request)
                    member.failed(error)
                    if member.fault is None:
                        continue
                    for other in [other for other, (owner, _) in tasks.items() if owner is member]:
                        other.cancel()
                        waiting.appendleft(give_back(other))
                    if any(one.fault is None for one in members):
                        warn(member)
                else:
                    member.answered()
                    on_done(request, answer)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# vLLM's server takes what a request leaves open from the model's generation config; vLLM's offline engine does not.
PLAIN = {"min_p": 0.0, "repetition_penalty": 1.0}


class EndpointEngine:
    """A model behind one or several URLs. The key comes from OPENAI_API_KEY."""

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        tokenizer: Any = None,
        concurrency: int = 64,
        timeout: float = 600.0,
        max_retries: int = 6,
        extra_body: Mapping[str, Any] | None = None,
        request_body: Callable[[Request], Mapping[str, Any]] | None = None,
    ):
        """Name the endpoints.

        Args:
            urls: each with its path, such as http://host:8000/v1.
            model: name under which the endpoints serve the model.
            tokenizer: the model's, for prompts as token ids.
            concurrency: most problems in flight at each endpoint.
            timeout: seconds for one request.
            max_retries: of a request that times out or meets a server error, with growing pauses.
            extra_body: further keys of every request.
            request_body: further keys of one request.
        """
        self._endpoints = [
            EndpointSettings(url, model, timeout=timeout, attempts=max_retries + 1, concurrency=concurrency)
            for url in urls
        ]
        self._extra_body = dict(extra_body or {})
        self._request_body = request_body or (lambda request: {})
        self.tokenizer = tokenizer

    def write(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request; problems that finish before a fault are handed over.

        Raises:
            EnvironmentProblem: no endpoint is left that answers, or one finds fault with a request.
        """
        self._spread(
            requests, sampling, lambda request, answer: on_done(request.key, responses_of(request.key, answer))
        )

    @property
    def model_length(self) -> int:
        """Tokens of the context window, as vLLM's server states them; the smallest of several.

        Raises:
            EnvironmentProblem: an endpoint does not answer, does not serve the model, or does not state it.
        """
        return _explained(lambda: min(shared.EndpointEngine(one).model_length for one in self._endpoints))

    def write_parts(self, turns: Sequence[Turn], sampling: Sampling, separator: str) -> list[Part]:
        """One part of each response, up to and with the token in which `separator` ends, as `VllmEngine` has it.

        Raises:
            EnvironmentProblem: no endpoint answers, or one is no vLLM server, which alone takes token ids.
        """
        answers: dict[str, Answer] = {}
        requests = requests_of(turns)
        self._spread(
            requests,
            part_sampling(sampling, separator),
            lambda request, answer: answers.__setitem__(request.key, answer),
        )
        if any(answer.completions[0].token_ids is None for answer in answers.values()):
            urls = ", ".join(one.url for one in self._endpoints)
            raise EnvironmentProblem(f"{urls} answers without token ids, which vLLM's server gives; no handoff")
        return [part_of(answers[request.key], separator) for request in requests]

    def prompt_log_probs(self, token_ids: Sequence[Sequence[int]]) -> list[list[dict[int, float] | None]]:
        """For each sequence the log-probability of every token of it, as `VllmEngine` has it, from vLLM's server.

        Raises:
            EnvironmentProblem: no answer, or none with log-probabilities of a prompt.
        """
        settings = self._endpoints[0]
        body = {"model": settings.model, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0} | self._extra_body

        async def read(endpoint: Endpoint) -> list[list[dict[int, float] | None]]:
            return await asyncio.gather(
                *(
                    endpoint.post("/v1/completions", body | {"prompt": list(ids)}, _read_prompt_log_probs)
                    for ids in token_ids
                )
            )

        return _explained(lambda: shared.EndpointEngine(settings).run(read))

    def _spread(
        self, requests: Sequence[Request], sampling: Sampling, on_done: Callable[[Request, Answer], None]
    ) -> None:
        plain = {} if self.tokenizer is None else PLAIN | {"top_k": sampling.top_k}

        async def ask(settings: EndpointSettings, endpoint: Endpoint, request: Request) -> Answer:
            body = {**plain, **self._extra_body, **self._request_body(request)}
            return await shared.EndpointEngine(settings, extra_body=body).ask(endpoint, request, sampling)

        async def work() -> None:
            async with AsyncExitStack() as stack:
                members = []
                for settings in self._endpoints:
                    endpoint = await stack.enter_async_context(Endpoint(settings))
                    members.append(Member(settings.url, partial(ask, settings, endpoint), settings.concurrency))
                await spread(requests, members, on_done, warn)

        def warn(member: Member) -> None:
            print(f"{member.fault}: left out, its problems go to the other endpoints", file=sys.stderr)
            self._endpoints = [one for one in self._endpoints if one.url != member.name]

        _explained(lambda: asyncio.run(work()))


def _read_prompt_log_probs(reply: Any) -> list[dict[int, float] | None]:
    (choice,) = reply["choices"]
    return [
        None if entry is None else {int(token): float(found["logprob"]) for token, found in entry.items()}
        for entry in choice["prompt_logprobs"]
    ]


def _explained(work: Callable[[], Any]) -> Any:
    """What `work` returns; a fault of the endpoint says what to do."""
    try:
        return work()
    except EndpointError as error:
        raise EnvironmentProblem(f"{error}; finished problems are kept, run again to continue") from error
