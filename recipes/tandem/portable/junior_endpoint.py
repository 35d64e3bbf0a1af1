"""Ask the junior behind an OpenAI-compatible endpoint that takes and returns token ids."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from recipes.errors import ConfigError
from recipes.tandem.portable.settings import PortableSettings

KEY_VARIABLE = "TANDEM_JUNIOR_API_KEY"


class JuniorEndpointError(RuntimeError):
    """The junior's endpoint did not answer, or not with what was asked for."""


class JuniorEndpoint:
    """The junior behind its URL; the key comes from TANDEM_JUNIOR_API_KEY."""

    def __init__(self, settings: PortableSettings):
        try:
            from openai import AsyncOpenAI
        except ImportError as error:
            raise ConfigError("the portable path needs openai: pip install 'verl-duets[judge]'.") from error
        self._name, self._url = settings.junior_name, settings.junior_url
        self._client = AsyncOpenAI(
            base_url=settings.junior_url,
            api_key=os.environ.get(KEY_VARIABLE, "none"),
            timeout=settings.timeout,
            max_retries=settings.max_retries,
        )

    async def served_models(self) -> list[str]:
        """The names that the endpoint serves.

        Raises:
            JuniorEndpointError: no answer.
        """
        from openai import OpenAIError

        try:
            return [model.id async for model in self._client.models.list()]
        except OpenAIError as error:
            raise JuniorEndpointError(f"{self._url} failed: {type(error).__name__}: {error}") from error

    async def write(self, token_ids: Sequence[int], max_tokens: int, sampling: Mapping[str, Any]) -> list[int]:
        """Continue token ids by at most ``max_tokens``; the tokens written, a stop token included.

        Raises:
            JuniorEndpointError: no answer after all retries, a refusal, or an answer without token ids.
        """
        from openai import OpenAIError

        try:
            answer = await self._client.completions.create(
                model=self._name,
                prompt=list(token_ids),
                max_tokens=max_tokens,
                temperature=sampling["temperature"],
                top_p=sampling["top_p"],
                extra_body={"top_k": sampling["top_k"], "return_token_ids": True},
            )
        except OpenAIError as error:
            raise JuniorEndpointError(f"{self._url} failed: {type(error).__name__}: {error}") from error
        written = getattr(answer.choices[0], "token_ids", None)
        if not written or len(written) > max_tokens:
            raise JuniorEndpointError(
                f"{self._url} was asked for 1 to {max_tokens} token ids and gave {written!r}; vLLM's server knows "
                "return_token_ids"
            )
        return list(written)
