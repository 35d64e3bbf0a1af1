"""One HTTP client for everything that is served: bounded retries with jitter, a finite time limit, replies checked."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

T = TypeVar("T")

RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class EndpointError(RuntimeError):
    """The endpoint could not be used. `reason` is a short token for counts."""

    def __init__(self, message: str, reason: str):
        super().__init__(message, reason)
        self.message, self.reason = message, reason

    def __str__(self) -> str:
        return self.message


class Unreachable(EndpointError):
    """Down, slow, or out of order; another attempt may succeed."""


class JunkReply(EndpointError):
    """A reply that is not what was asked for; another attempt may succeed."""


class Refused(EndpointError):
    """The server understood the request and declined it; another attempt would not help."""


@dataclass(frozen=True)
class EndpointOptions:
    """Where and how patiently to ask.

    url: root of the server, without `/v1`. timeout: seconds for one attempt. attempts: how often one request is sent
        at most.
    max_wait: longest pause in seconds between attempts. api_key_env: environment variable that holds the key, if any.
    """

    url: str
    timeout: float = 120.0
    attempts: int = 4
    max_wait: float = 20.0
    api_key_env: str = "OPENAI_API_KEY"

    def __post_init__(self):
        if self.attempts < 1 or not self.timeout > 0:
            raise ValueError(f"attempts and timeout must be positive, found {self.attempts} and {self.timeout}")


class Endpoint:
    """A session with one server. Use it in `async with`, within one event loop."""

    def __init__(self, options: EndpointOptions):
        self.options = options
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Endpoint":
        key = os.environ.get(self.options.api_key_env, "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = aiohttp.ClientTimeout(total=self.options.timeout)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=timeout, headers=headers, connector=connector)
        return self

    async def __aexit__(self, *exc) -> None:
        await self._session.close()

    async def post(self, path: str, body: dict, read: Callable[[Any], T]) -> T:
        """Send `body` as JSON and return `read(reply)`.

        Args:
            path: below the root, such as `/v1/completions`.
            read: turns the decoded reply into the result; a LookupError, TypeError or ValueError from it means junk.

        Raises:
            Refused: at once, for a status that no retry mends.
            Unreachable, JunkReply: after the last attempt.
        """
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.options.attempts),
            wait=wait_random_exponential(multiplier=0.25, max=self.options.max_wait),
            retry=retry_if_exception_type((Unreachable, JunkReply)),
            reraise=True,
        )
        return await retrying(self._attempt, path, body, read)

    async def get_text(self, path: str) -> str:
        """Body of a page, one attempt.

        Raises:
            Unreachable: the page cannot be had.
        """
        try:
            async with self._session.get(self._url(path)) as response:
                response.raise_for_status()
                return await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{self._url(path)}: {error!r}", "unreachable") from error

    def _url(self, path: str) -> str:
        return self.options.url.rstrip("/").removesuffix("/v1") + path

    async def _attempt(self, path: str, body: dict, read: Callable[[Any], T]) -> T:
        url = self._url(path)
        try:
            async with self._session.post(url, json=body) as response:
                status, payload = response.status, await response.read()
        except TimeoutError as error:
            raise Unreachable(f"{url} did not answer within {self.options.timeout:g} s", "timeout") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{url} cannot be reached: {error!r}", "unreachable") from error
        excerpt = payload[:200].decode("utf-8", errors="replace")
        if status in RETRIED_STATUS:
            raise Unreachable(f"{url} answered with status {status}: {excerpt}", f"http_{status}")
        if status != 200:
            raise Refused(f"{url} refused the request with status {status}: {excerpt}", f"http_{status}")
        try:
            return read(json.loads(payload))
        except (LookupError, TypeError, ValueError) as error:
            raise JunkReply(f"{url} sent something else than asked for ({error!r}): {excerpt}", "junk_reply") from error


async def in_parallel(count: int, work: Callable[[], Awaitable[None]]) -> None:
    """Run `count` workers side by side; the first exception ends them all."""
    tasks = [asyncio.ensure_future(work()) for _ in range(count)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
