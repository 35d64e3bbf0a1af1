"""A model behind OpenAI-compatible endpoints: vLLM's server, or another."""

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from recipes.core import sampling as core_sampling
from recipes.core.sampling import Request, Sampling
from recipes.errors import EnvironmentProblem
from recipes.evaluation.engines import Part, Turn, part_of, part_sampling, turn_requests
from recipes.evaluation.sample_store import OnDone, responses_of
from reward_fns.completions import Answer
from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError

# Failures in a row after which an endpoint is left out.
FAILURES = 3
# vLLM's server takes what a request leaves open from the model's generation config; vLLM's offline engine does not.
PLAIN = {"min_p": 0.0, "repetition_penalty": 1.0}


@dataclass
class Member:
    """One endpoint of a pool.

    Attributes:
        name: its address, for messages.
        ask: sends one request.
        capacity: most requests under way.
        fault: why it was left out; None while it is asked.
    """

    name: str
    ask: Callable[[Request], Awaitable[Answer]]
    capacity: int
    failures: int = 0
    under_way: int = 0
    fault: EndpointError | None = None


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

    def start_requests() -> None:
        while waiting and (free := [m for m in members if m.fault is None and m.under_way < m.capacity]):
            member, request = min(free, key=lambda m: m.under_way / m.capacity), waiting.popleft()
            member.under_way += 1
            tasks[asyncio.ensure_future(member.ask(request))] = member, request

    def pop(task: asyncio.Task[Answer]) -> tuple[Member, Request]:
        member, request = tasks.pop(task)
        member.under_way -= 1
        return member, request

    try:
        while waiting or tasks:
            start_requests()
            if not tasks:
                raise next(error for member in reversed(members) if (error := member.fault))
            for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                if task not in tasks:
                    continue
                member, request = pop(task)
                try:
                    answer = task.result()
                except EndpointError as error:
                    if error.kind == "request":
                        raise
                    waiting.appendleft(request)
                    member.failures += 1
                    if error.kind != "refused" and member.failures < FAILURES:
                        continue
                    member.fault = error
                    # What it has under way goes to the others at once.
                    for other in [other for other, (owner, _) in tasks.items() if owner is member]:
                        other.cancel()
                        waiting.appendleft(pop(other)[1])
                    if any(one.fault is None for one in members):
                        warn(member)
                else:
                    member.failures = 0
                    on_done(request, answer)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class EndpointEngine:
    """A model behind one or several URLs. The key comes from OPENAI_API_KEY.

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
        self._spread(requests, sampling, lambda one, answer: on_done(one.key, responses_of(one.key, answer)))

    @property
    def model_length(self) -> int:
        """Tokens of the context window, as vLLM's server states them; the smallest of several.

        Raises:
            EnvironmentProblem: an endpoint does not answer, does not serve the model, or does not state it.
        """
        return _explained(lambda: min(core_sampling.EndpointEngine(one).model_length for one in self._endpoints))

    def write_parts(self, turns: Sequence[Turn], sampling: Sampling, separator: str) -> list[Part]:
        """One part of each response, up to and with the token in which `separator` ends, as `VllmEngine` has it.

        Raises:
            EnvironmentProblem: no endpoint answers, or one is no vLLM server, which alone takes token ids.
        """
        answers: dict[str, Answer] = {}
        requests = turn_requests(turns)
        self._spread(requests, part_sampling(sampling, separator), lambda one, a: answers.__setitem__(one.key, a))
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

        def read(reply: Any) -> list[dict[int, float] | None]:
            (choice,) = reply["choices"]
            return [
                None if entry is None else {int(token): float(value["logprob"]) for token, value in entry.items()}
                for entry in choice["prompt_logprobs"]
            ]

        async def ask(endpoint: Endpoint) -> list[list[dict[int, float] | None]]:
            posts = [endpoint.post("/v1/completions", body | {"prompt": list(ids)}, read) for ids in token_ids]
            return await asyncio.gather(*posts)

        return _explained(lambda: core_sampling.EndpointEngine(settings).run(ask))

    def _spread(
        self, requests: Sequence[Request], sampling: Sampling, on_done: Callable[[Request, Answer], None]
    ) -> None:
        plain = {} if self.tokenizer is None else PLAIN | {"top_k": sampling.top_k}

        async def ask(settings: EndpointSettings, endpoint: Endpoint, request: Request) -> Answer:
            body = {**plain, **self._extra_body, **self._request_body(request)}
            return await core_sampling.EndpointEngine(settings, extra_body=body).ask(endpoint, request, sampling)

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


def _explained(work: Callable[[], Any]) -> Any:
    """What `work` returns; a fault of the endpoint says what to do."""
    try:
        return work()
    except EndpointError as error:
        raise EnvironmentProblem(f"{error}; finished problems are kept, run again to continue") from error
