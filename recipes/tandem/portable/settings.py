"""The settings of `algorithm.tandem.portable`."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from recipes.core.settings import Count, CountOrZero, Positive
from recipes.errors import ConfigError
from recipes.tandem.settings import tandem_config
from reward_fns.endpoint import EndpointSettings
from vllm_patches.tandem.config import TandemConfig

BLOCK = "algorithm.tandem.portable"


@dataclass(frozen=True)
class PortableSettings:
    """How the junior is reached, and who writes which token.

    Attributes:
        junior_url: the endpoint's address with its path, such as http://host:8000/v1.
        junior_name: the name under which the endpoint serves the junior.
        tandem_config: who writes which token: the settings of a tandem engine, its device settings left out.
        chunk_tokens: most tokens asked of an author for one turn; at the paper's settings a turn lasts about three.
        timeout: seconds for one request to the endpoint.
        max_retries: of a request that times out or meets a server error, with growing pauses.

    Raises:
        ConfigError: a strategy that two engines cannot follow, or faulty settings of it.
    """

    junior_url: Annotated[str, Field(pattern=r"^https?://")]
    junior_name: Annotated[str, Field(min_length=1)]
    tandem_config: dict[str, Any]
    chunk_tokens: Count = 8
    timeout: Positive = 600.0
    max_retries: CountOrZero = 6

    def __post_init__(self) -> None:
        if self.schedule.word_align == "before":
            raise ConfigError(
                f"{BLOCK}.tandem_config.word_align=before needs both models' samples at every step, which two engines "
                "do not give; set it to after.",
                f"{BLOCK}.tandem_config.word_align",
            )

    @property
    def schedule(self) -> TandemConfig:
        """Who writes which token."""
        return tandem_config(self.tandem_config)

    @property
    def endpoint(self) -> EndpointSettings:
        """How the junior's endpoint is asked; its key comes from TANDEM_JUNIOR_API_KEY."""
        return EndpointSettings(
            self.junior_url,
            self.junior_name,
            key_variable="TANDEM_JUNIOR_API_KEY",
            timeout=self.timeout,
            attempts=self.max_retries + 1,
            # the endpoint batches; verl's sessions already bound what is under way
            concurrency=1024,
        )
