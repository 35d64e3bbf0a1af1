"""The junior behind an OpenAI-compatible endpoint, for the portable path: its settings, and how it is asked."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from recipes.errors import ConfigError
from recipes.tandem.engine_settings import tandem_config
from vllm_patches.tandem.config import TandemConfig

KEY_VARIABLE = "TANDEM_JUNIOR_API_KEY"


class JuniorEndpointError(RuntimeError):
    """The junior's endpoint did not answer, or not with what was asked for."""


@dataclass(frozen=True)
class PortableSettings:
    """The block `algorithm.tandem.portable`.

    Attributes:
        junior_url: the endpoint's address with its path, such as http://host:8000/v1.
        junior_name: the name under which the endpoint serves the junior.
        tandem_config: who writes which token: the settings of a tandem engine, its device settings left out.
        chunk_tokens: most tokens asked of an author at once; at the paper's settings a turn lasts about three.
        timeout: seconds for one request to the endpoint.
        max_retries: of a request that times out or meets a server error, with growing pauses.
    """

    junior_url: str
    junior_name: str
    tandem_config: Mapping[str, Any]
    chunk_tokens: int = 8
    timeout: float = 600.0
    max_retries: int = 6

    def __post_init__(self) -> None:
        if not str(self.junior_url).startswith(("http://", "https://")):
            raise ConfigError(
                f"algorithm.tandem.portable.junior_url={self.junior_url!r} is no address such as http://host:8000/v1."
            )
        if not isinstance(self.junior_name, str) or not self.junior_name:
            raise ConfigError(
                "algorithm.tandem.portable.junior_name must be the name the endpoint serves the junior by."
            )
        for name, smallest in (("chunk_tokens", 1), ("max_retries", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                raise ConfigError(
                    f"algorithm.tandem.portable.{name} must be a whole number, at least {smallest}, found {value!r}."
                )
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not self.timeout > 0:
            raise ConfigError(f"algorithm.tandem.portable.timeout must be seconds above 0, found {self.timeout!r}.")
        if self.schedule.word_align == "before":
            raise ConfigError(
                "algorithm.tandem.portable.tandem_config.word_align=before needs both models' samples at every step, "
                "which two engines do not give; set it to after."
            )

    @property
    def schedule(self) -> TandemConfig:
        return tandem_config(self.tandem_config)

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any]) -> "PortableSettings":
        """Read the block.

        Raises:
            ConfigError: not a block, an unknown or missing key, or a value out of range.
        """
        if not isinstance(block, Mapping):
            raise ConfigError(f"algorithm.tandem.portable must be a block of settings, found {block!r}.")
        known = [field.name for field in fields(cls)]
        if unknown := sorted(str(key) for key in block if key not in known):
            raise ConfigError(
                f"algorithm.tandem.portable has no option {', '.join(unknown)}; the options are {', '.join(known)}."
            )
        given = {str(key): value for key, value in block.items() if value is not None}
        if missing := [name for name in known[:3] if name not in given]:
            raise ConfigError(f"algorithm.tandem.portable.{missing[0]} is not set; the portable path needs it.")
        return cls(**given)


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
