"""An OpenAI-compatible endpoint that may be slow, busy or broken: bounded tries, jitter, its wishes honoured."""

import asyncio
import email.utils
import math
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from recipes.pasodoble.prompts import THINK, Messages

TRANSIENT_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
FATAL_STATUS = frozenset({401, 402, 403, 404})


class EndpointError(RuntimeError):
    """One request failed for good; another one may succeed."""


class EndpointRefused(RuntimeError):
    """The endpoint will refuse every request: wrong key, wrong model, no money left."""


class _Malformed(Exception):
    """The endpoint answered with something that is no chat completion."""


@dataclass(frozen=True)
class Completion:
    """One completion: its text, thinking included, and whether the model or a filter declined to answer."""

    text: str
    refused: bool = False


@dataclass(frozen=True)
class EndpointSettings:
    """Where the endpoint is and how patient to be; all times in seconds."""

    base_url: str | None
    model: str
    key_variable: str
    concurrency: int = 16
    timeout: float = 600.0
    """For one request, from sending it to the last byte of its answer."""
    max_tries: int = 8
    max_wait: float = 300.0
    """Longest pause between two tries, also when the endpoint asks for a longer one."""
    first_wait: float = 1.0

    def api_key(self) -> str:
        """Read from the environment and nowhere else. Raises ValueError if it is not set."""
        key = os.environ.get(self.key_variable, "")
        if not key:
            raise ValueError(
                f"the environment variable {self.key_variable} is not set: export the API key of "
                f"{self.base_url or 'the OpenAI endpoint'} (any value, if the server asks for none)"
            )
        return key


class ChatEndpoint:
    """Chat completions with at most ``concurrency`` requests under way; ``counts`` says what happened to them."""

    def __init__(self, settings: EndpointSettings):
        from openai import AsyncOpenAI

        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._client = AsyncOpenAI(api_key=settings.api_key(), base_url=settings.base_url, max_retries=0)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._not_before = 0.0

    async def complete(self, messages: Messages, n: int = 1, **sampling: Any) -> list[Completion]:
        """Exactly ``n`` completions; asks again if the endpoint gives fewer at a time.

        Raises:
            EndpointError: after ``max_tries`` failed tries.
            EndpointRefused: on an error that no retry can mend.
        """
        completions: list[Completion] = []
        while len(completions) < n:
            missing = n - len(completions)
            # only what is missing is asked for, and an endpoint may still send more
            completions += (await self._with_retries(messages, missing, sampling))[:missing]
        return completions

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _with_retries(self, messages: Messages, n: int, sampling: dict[str, Any]) -> list[Completion]:
        from openai import OpenAIError
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

        jitter = wait_random_exponential(multiplier=self.settings.first_wait, max=self.settings.max_wait)

        def wait(state) -> float:
            asked = _retry_after(state.outcome.exception())
            if asked is not None:
                # the others should not run into the same wall meanwhile
                self._not_before = max(self._not_before, time.monotonic() + min(asked, self.settings.max_wait))
            return min(max(jitter(state), asked or 0.0), self.settings.max_wait)

        retrying = AsyncRetrying(
            retry=retry_if_exception(_is_transient),
            stop=stop_after_attempt(self.settings.max_tries),
            wait=wait,
            reraise=True,
        )
        try:
            return await retrying(self._once, messages, n, sampling)
        except (OpenAIError, TimeoutError, _Malformed) as error:
            where = f"{self._client.base_url} ({self.settings.model})"
            if _is_transient(error):
                raise EndpointError(
                    f"{where} failed {self.settings.max_tries} times, last with {_describe(error)}"
                ) from error
            if _out_of_quota(error) or getattr(error, "status_code", None) in FATAL_STATUS:
                raise EndpointRefused(f"{where} refuses: {_describe(error)}") from error
            raise EndpointError(f"{where} cannot take this request: {_describe(error)}") from error

    async def _once(self, messages: Messages, n: int, sampling: dict[str, Any]) -> list[Completion]:
        async with self._slots:
            while (pause := self._not_before - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            self.counts["requests"] += 1
            try:
                async with asyncio.timeout(self.settings.timeout):
                    answer = await self._client.chat.completions.create(
                        model=self.settings.model,
                        messages=messages,
                        n=n,
                        timeout=self.settings.timeout,
                        **sampling,
                    )
                return _completions(answer)
            except Exception as error:
                self.counts[_describe(error).split(":")[0]] += 1
                if isinstance(error, ValueError):
                    # a body that is cut off or no JSON at all
                    raise _Malformed(f"an unreadable body: {error}") from error
                raise


def _completions(answer: Any) -> list[Completion]:
    choices = getattr(answer, "choices", None)
    if not choices or any(getattr(choice, "message", None) is None for choice in choices):
        raise _Malformed("an answer without choices")
    return [_completion(choice) for choice in choices]


def _completion(choice: Any) -> Completion:
    message = choice.message
    content = message.content or ""
    thinking = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    if isinstance(thinking, str) and thinking:
        content = f"{THINK}\n{thinking}\n</think>\n{content}"
    refused = bool(getattr(message, "refusal", None)) or choice.finish_reason == "content_filter"
    return Completion(content, refused)


def _is_transient(error: BaseException) -> bool:
    from openai import APIConnectionError, APIResponseValidationError, APIStatusError

    if isinstance(error, APIStatusError):
        return error.status_code in TRANSIENT_STATUS and not _out_of_quota(error)
    return isinstance(error, APIConnectionError | APIResponseValidationError | TimeoutError | _Malformed)


def _out_of_quota(error: BaseException) -> bool:
    return getattr(error, "code", None) == "insufficient_quota"


def _retry_after(error: BaseException | None) -> float | None:
    """Seconds that the endpoint asks to wait: a number or a date."""
    response = getattr(error, "response", None)
    value = response.headers.get("retry-after") if response is not None else None
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _describe(error: BaseException) -> str:
    status = getattr(error, "status_code", None)
    kind = f"HTTP {status}" if status else type(error).__name__.strip("_")
    text = " ".join(str(error).split())
    return f"{kind}: {text[:300]}" if text else kind
