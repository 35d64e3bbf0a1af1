"""One client for everything that is served over HTTP: OpenAI-compatible endpoints, process reward models, routers.

One policy for all of them. A fault that may pass (no connection, no answer in time, HTTP 408, 409, 425, 429 and 5xx, a
reply that is not what was asked for) is retried with jittered exponential pauses, within a number of attempts and,
where one is set, a deadline. What `Retry-After` asks for holds back every request to the endpoint. What no retry
changes ends at once: the request itself is wrong (another 4xx), or the endpoint refuses every request (wrong key,
address or model name, a redirect, no credit left). After several failures in a row the circuit opens, and for a while
no request is tried. The API key comes from the environment and stands in no message.

    async with Endpoint(EndpointSettings("http://host:8000/v1", "Qwen3-4B")) as endpoint:
        answer = await endpoint.chat([{"role": "user", "content": "1 + 1"}], n=4, temperature=0.8, max_tokens=512)

Needs the packages openai and tenacity, imported at the first request.
"""

import asyncio
import dataclasses
import email.utils
import json
import math
import os
import re
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlsplit

from reward_fns.completions import Answer, read_answer
from reward_fns.errors import EndpointError, OptionError

T = TypeVar("T")

RETRIED_STATUS = frozenset({408, 409, 425, 429})
"""Client errors after which another attempt may succeed; every status from 500 on is retried too."""
REFUSING_STATUS = frozenset({401, 402, 403, 404, 405})
"""Client errors that every request will meet."""

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class EndpointSettings:
    """Where the endpoint is, and how long to try.

    Attributes:
        url: root of the server, with or without `/v1`.
        model: name of the served model; not needed for :meth:`Endpoint.post` alone.
        key_variable: environment variable that holds the API key; None, or a variable that is not set, sends none.
        timeout: seconds for one attempt.
        deadline: seconds for one request with all its attempts and pauses, counted from its first attempt; None for
            no limit beside the attempts.
        attempts: how often one request is sent at most.
        first_wait: seconds about which the first pause is drawn; the bound doubles with each attempt.
        max_wait: longest pause in seconds, also where the endpoint asks for a longer one.
        concurrency: requests under way at a time, in one event loop.
        failures_in_a_row: failed requests in a row that open the circuit; None never opens it.
        cooldown: seconds for which an open circuit lets nothing through; then one request is tried.
    """

    url: str
    model: str = ""
    key_variable: str | None = "OPENAI_API_KEY"
    timeout: float = 600.0
    deadline: float | None = None
    attempts: int = 6
    first_wait: float = 0.5
    max_wait: float = 60.0
    concurrency: int = 64
    failures_in_a_row: int | None = None
    cooldown: float = 30.0

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith(("http://", "https://")):
            raise OptionError(f"expected an address such as http://host:8000/v1, found {self.url!r}")
        positive = (self.timeout, self.attempts, self.concurrency, self.deadline, self.failures_in_a_row)
        if not all(value > 0 for value in positive if value is not None):
            raise OptionError("timeout, attempts, concurrency, deadline and failures_in_a_row must be above 0")
        if self.first_wait < 0 or self.max_wait < 0 or self.cooldown < 0:
            raise OptionError("first_wait, max_wait and cooldown must not be negative")

    @property
    def root(self) -> str:
        """The server's address without `/v1`."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def key(self) -> str | None:
        """The API key, None when there is none."""
        return os.environ.get(self.key_variable) or None if self.key_variable else None

    def require_key(self) -> None:
        """Refuse to go on without a key.

        Raises:
            OptionError: the variable is not set.
        """
        if self.key is None:
            raise OptionError(
                f"the environment variable {self.key_variable} is not set: export the API key of {shown(self.url)} "
                "(any value, if the server asks for none)"
            )


class CircuitBreaker:
    """Stops asking after `threshold` failures in a row; lets one request try again after `cooldown` seconds."""

    def __init__(self, threshold: int | None, cooldown: float, clock: Callable[[], float] = time.monotonic):
        self._threshold = math.inf if threshold is None else threshold
        self._cooldown, self._clock = cooldown, clock
        self._failures, self._open_until = 0, 0.0

    def allows(self) -> bool:
        """Whether a request may be sent now; after the cool-down the first to ask is the one that tries."""
        if self._failures < self._threshold:
            return True
        now = self._clock()
        if now < self._open_until:
            return False
        self._open_until = now + self._cooldown
        return True

    def record(self, success: bool) -> None:
        """Take note of how a request ended."""
        self._failures = 0 if success else self._failures + 1
        if self._failures >= self._threshold:
            self._open_until = self._clock() + self._cooldown


@dataclass
class _Connection:
    """What belongs to one event loop."""

    client: Any
    gate: asyncio.Semaphore
    not_before: float = 0.0


@dataclass
class _Request(Generic[T]):
    """One request with all its attempts.

    Attributes:
        read: turns the text of the reply into the result.
        ends: when its deadline passes; None before the first attempt.
    """

    method: Literal["get", "post"]
    path: str
    read: Callable[[str], T]
    body: dict[str, Any] | None = None
    ends: float | None = None


class Endpoint:
    """Asks one endpoint. Use one object for many requests, from any event loop: verl runs reward functions on several.

    `counts` says what happened: `requests` sent, and a number for each reason of a failed attempt.
    """

    def __init__(self, settings: EndpointSettings):
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._breaker = CircuitBreaker(settings.failures_in_a_row, settings.cooldown)
        self._connections: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        n: int = 1,
        read: Callable[[Answer], T] | None = None,
        **body: Any,
    ) -> Any:
        """Exactly `n` completions of a conversation.

        Args:
            messages: role and content each.
            read: turns the answer into the result; a ValueError, TypeError or LookupError from it means that another
                attempt may do better.
            body: further keys of the request (temperature, max_tokens, seed, top_k, ...); None leaves one out.

        Returns:
            An :class:`Answer`, or what `read` made of it.

        Raises:
            EndpointError: no usable answer.
        """
        return await self._generate("/v1/chat/completions", {"messages": list(messages)}, n, read, body)

    async def complete(
        self, prompt: Prompt, *, n: int = 1, read: Callable[[Answer], T] | None = None, **body: Any
    ) -> Any:
        """Exactly `n` continuations of a text or, on vLLM's server, of token ids; see :meth:`chat`."""
        prompt = prompt if isinstance(prompt, str) else list(prompt)
        return await self._generate("/v1/completions", {"prompt": prompt}, n, read, body)

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Send `body` as JSON to a path below the root and return `read(reply)`.

        Args:
            path: such as `/pooling` or `/classify`.
            read: turns the decoded reply into the result; a ValueError, TypeError or LookupError from it means that
                another attempt may do better.

        Raises:
            EndpointError: no usable reply.
        """
        return await self._ask(_Request("post", path, lambda text: read(json.loads(text)), dict(body)))

    async def get_text(self, path: str) -> str:
        """The body of a page below the root, such as `/metrics`.

        Raises:
            EndpointError: it cannot be had.
        """
        return await self._ask(_Request("get", path, str))

    async def served_models(self) -> dict[str, int | None]:
        """Names of the served models, with the context length (tokens) that vLLM's server tells.

        Raises:
            EndpointError: no usable reply.
        """

        def read(text: str) -> dict[str, int | None]:
            return {model["id"]: model.get("max_model_len") for model in json.loads(text)["data"]}

        return await self._ask(_Request("get", "/v1/models", read))

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.client.close()

    async def _generate(
        self, path: str, prompt: dict[str, Any], n: int, read: Callable[[Answer], T] | None, extra: dict[str, Any]
    ) -> Any:
        body = {"model": self.settings.model} | prompt | {k: value for k, value in extra.items() if value is not None}
        whole = Answer([])

        def gather(reply: Any) -> tuple[Answer, Any]:
            answer = read_answer(reply)
            # An endpoint may send more than was asked for.
            joined = dataclasses.replace(answer, completions=[*whole.completions, *answer.completions][:n])
            return joined, joined if read is None or len(joined.completions) < n else read(joined)

        while True:
            done = len(whole.completions)
            # Some endpoints give one completion at a time; the same seed would give the same one again.
            more = {"n": n - done} | ({"seed": body["seed"] + done} if done and "seed" in body else {})
            whole, result = await self.post(path, body | more, gather)
            if len(whole.completions) == n:
                return result

    async def _ask(self, request: _Request[T]) -> T:
        if not self._breaker.allows():
            raise EndpointError(f"{self._where} failed too often in a row and is not asked for a while", "circuit_open")
        try:
            import tenacity
        except ImportError as error:
            raise _not_installed(error) from error
        connection = self._connection()
        pause = tenacity.wait_random_exponential(multiplier=self.settings.first_wait, max=self.settings.max_wait)

        def wait(state: Any) -> float:
            delay = min(state.outcome.exception().retry_after, self.settings.max_wait)
            if delay > 0:
                # Every other request to this endpoint would be turned away too.
                connection.not_before = max(connection.not_before, time.monotonic() + delay)
            return min(pause(state), self.settings.max_wait)

        retrying = tenacity.AsyncRetrying(
            stop=lambda state: (
                state.attempt_number >= self.settings.attempts
                or max(time.monotonic() + state.upcoming_sleep, connection.not_before) >= (request.ends or math.inf)
            ),
            wait=wait,
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, EndpointError) and error.passing),
            reraise=True,
        )
        try:
            result: T = await retrying(self._attempt, connection, request)
        except EndpointError as error:
            # An endpoint that answers, if only nonsense, is up; so is one that finds fault with the request.
            self._breaker.record(error.reason == "junk_reply" or error.kind == "request")
            raise
        self._breaker.record(True)
        return result

    async def _attempt(self, connection: _Connection, request: _Request[T]) -> T:
        async with connection.gate:
            while (pause := connection.not_before - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            if request.ends is None:
                request.ends = time.monotonic() + (self.settings.deadline or math.inf)
            self.counts["requests"] += 1
            try:
                return await self._send(connection.client, request, request.ends - time.monotonic())
            except EndpointError as error:
                self.counts[error.reason] += 1
                raise

    async def _send(self, client: Any, request: _Request[T], seconds_left: float) -> T:
        import openai

        where = self._where + request.path
        seconds = max(0.0, min(self.settings.timeout, seconds_left))
        # A POST that is redirected becomes a GET, or takes the key to another host.
        options: Any = {"follow_redirects": False, "timeout": seconds}
        arguments = {} if request.body is None else {"body": request.body}
        try:
            async with asyncio.timeout(seconds):
                send = getattr(client, request.method)
                text = await send(self.settings.root + request.path, cast_to=str, options=options, **arguments)
        except (TimeoutError, openai.APITimeoutError):
            raise EndpointError(f"{where} did not answer within {seconds:.3g} s", "time_out") from None
        except openai.APIStatusError as error:
            raise self._status_error(error, where) from None
        except (openai.OpenAIError, OSError, ValueError) as error:
            cause = self._hide(repr(error.__cause__ or error))
            raise EndpointError(f"{where} cannot be reached: {cause}", "unreachable") from None
        try:
            return request.read(text)
        except (LookupError, TypeError, ValueError) as error:
            detail = self._hide(f"({error}): {text[:200]}")
            raise EndpointError(f"{where} sent something else than asked for {detail}", "junk_reply") from None

    def _status_error(self, error: Any, where: str) -> EndpointError:
        status, response = error.status_code, error.response
        said = self._hide(" ".join(response.text.split())[:300])
        kind: Literal["passing", "request", "refused"] = "request"
        if status < 400:
            kind, said = "refused", f"a redirect to {shown(response.headers.get('location', ''))}: give that address"
        elif status in REFUSING_STATUS or getattr(error, "code", None) == "insufficient_quota":
            kind = "refused"
        elif status in RETRIED_STATUS or status >= 500:
            kind = "passing"
        message = f"{where} answered HTTP {status}: {said}"
        return EndpointError(message, f"http_{status}", kind, retry_after(response.headers))

    @property
    def _where(self) -> str:
        return shown(self.settings.root)

    def _hide(self, text: str) -> str:
        """A text without the key, which some endpoints repeat in their errors."""
        return text.replace(self.settings.key, "***") if self.settings.key else text

    def _connection(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            try:
                import openai
            except ImportError as error:
                raise _not_installed(error) from error

            client = openai.AsyncOpenAI(base_url=self.settings.root, api_key=self.settings.key or "none", max_retries=0)
            self._connections[loop] = _Connection(client, asyncio.Semaphore(self.settings.concurrency))
        return self._connections[loop]


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that an endpoint asks to wait, given as a number or a date; 0 when it does not ask."""
    value = headers.get("retry-after") or ""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def shown(url: str) -> str:
    """An address for a message: without a name and password, and without a query."""
    parts = urlsplit(url)
    return re.sub(r"^//", "", parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl())


def _not_installed(error: ImportError) -> EndpointError:
    return EndpointError(
        f"an endpoint needs openai and tenacity ({error}): pip install verl-duets", "not_installed", "refused"
    )
