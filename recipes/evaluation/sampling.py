"""How responses are sampled, and what is asked of an engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

from recipes.errors import ConfigError
from recipes.evaluation.sample_store import Sample

# The response limit of thinking models whose generation config states none.
THINKING_TOKENS = 32_768
_GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "max_tokens": 3072}


@dataclass(frozen=True)
class Sampling:
    """Sampling settings; temperature 0 is greedy.

    Attributes:
        n: responses per problem.
        top_k: -1 for all tokens.
        max_tokens: most tokens of a response.
        stop: texts that end a response and are not part of it.
        seed: of the run; each problem has a seed of its own made from it.
    """

    n: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 3072
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self):
        if self.n < 1 or self.max_tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ConfigError(
                f"sampling: expected n and max_tokens >= 1, temperature >= 0 and top_p in (0, 1], found {self}"
            )
        if self.temperature == 0 and self.n > 1:
            raise ConfigError(
                f"sampling.n={self.n} with temperature 0 repeats one response; raise sampling.temperature"
            )


def recommended(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling as a model's generation config recommends it.

    A config that neither samples nor names a temperature means greedy decoding; without a response limit of its own a
    model gets that of thinking models.
    """
    limit = generation_config.get("max_new_tokens") or THINKING_TOKENS
    temperature, samples = generation_config.get("temperature"), generation_config.get("do_sample")
    if samples is False or (temperature is None and not samples):
        return _GREEDY | {"max_tokens": limit}
    return {
        "temperature": 1.0 if temperature is None else temperature,
        "top_p": generation_config.get("top_p") or 1.0,
        "top_k": generation_config.get("top_k") or -1,
        "max_tokens": limit,
    }


def resolve(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None, benchmark: str) -> Sampling:
    """The sampling of one model on one benchmark; what the configuration leaves open comes from its preset.

    Args:
        config: the block `sampling` of the configuration; null values are open.
        generation_config: the model's own, for `preset: model`.
        benchmark: whose entry in `budgets` replaces the response limit.

    Raises:
        ConfigError: an unknown preset, or values out of range.
    """
    if config["preset"] not in ("greedy", "model"):
        raise ConfigError(f"sampling.preset: expected greedy or model, found {config['preset']!r}")
    preset = _GREEDY if config["preset"] == "greedy" else recommended(generation_config or {})
    given = {key: value for key, value in config.items() if value is not None and key not in ("preset", "budgets")}
    values = preset | given | {"stop": tuple(config["stop"])}
    budgets = config["budgets"] or {}
    if benchmark in budgets:
        values["max_tokens"] = budgets[benchmark]
    return Sampling(**values)


class Request(NamedTuple):
    """One problem for an engine: token ids, or messages for a chat endpoint without a known tokenizer."""

    problem: str
    token_ids: list[int] | None
    messages: list[dict[str, str]] | None
    seed: int


# Called with a problem's id and its n samples, as soon as they are finished.
OnDone = Callable[[str, Sequence[Sample]], None]


class Engine(Protocol):
    """What writes responses."""

    def generate(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request, in any order."""


def problem_seed(run_seed: int, benchmark: str, problem: str) -> int:
    """Seed of a problem, a pure function of run seed, benchmark and problem, below 2^31."""
    return int.from_bytes(sha256(f"{run_seed}/{benchmark}/{problem}".encode()).digest()[:4]) & 0x7FFFFFFF
