"""How the responses to a benchmark are sampled: presets, limits and seeds."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from recipes.core.sampling import Sampling
from recipes.errors import ConfigError
from recipes.evaluation.sample_store import SampledResponse

# The response limit of thinking models whose generation config states none.
THINKING_TOKENS = 32_768
_GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "max_tokens": 3072}


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
        ConfigError: values out of range.
    """
    preset = _GREEDY if config["preset"] == "greedy" else recommended(generation_config or {})
    given = {
        key: value for key, value in config.items() if value is not None and key not in ("preset", "budgets", "seed")
    }
    values = preset | given | {"stop": tuple(config["stop"])}
    budgets = config["budgets"] or {}
    if benchmark in budgets:
        values["max_tokens"] = budgets[benchmark]
    try:
        return Sampling(**values)
    except ConfigError as error:
        raise ConfigError(f"sampling: {error}", "sampling") from error


# Called with a problem's id and its n samples, as soon as they are finished.
OnDone = Callable[[str, Sequence[SampledResponse]], None]


def problem_seed(run_seed: int, benchmark: str, problem: str) -> int:
    """Seed of a problem, a pure function of run seed, benchmark and problem, below 2^31."""
    return int.from_bytes(sha256(f"{run_seed}/{benchmark}/{problem}".encode()).digest()[:4]) & 0x7FFFFFFF
