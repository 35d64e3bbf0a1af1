"""The settings of `algorithm.tandem`: names, ranges, and the combinations that mean something."""

from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval, Len

from recipes.core.settings import Count, Positive, Share, check_value
from recipes.errors import ConfigError
from vllm_patches.tandem.config import CONFIG_KEY, REASON_KEY, TandemConfig, engine_arguments

BLOCK = "algorithm.tandem"


@dataclass(frozen=True)
class TandemSettings:
    """Settings of training and validation; who writes which token is the engine's (`engine_settings`).

    Attributes:
        validation: `solo` lets the senior write alone and selects checkpoints; `joint` validates the pair; `both` does
            one after the other and selects by the solo pass.
        normaliser: what the loss is divided by: the weights of the global mini-batch's tokens, which are its senior
            tokens where the junior's weigh nothing; or all of its response tokens (the published code's later
            generation), where the junior's weigh nothing up to the share that a mini-batch has of its step's tokens.
        junior_token_loss_weight: loss weight of the junior's tokens, from 0 to 1 (`junior_weight.py`).
        plausible_sd: the run stops when the senior's share of a step's redraws is further from `prob_senior` than this
            many standard deviations.
        pass_k: k of the macro-averaged pass@k that selects the best checkpoint; at most the validation's n.
        benchmarks: name -> data sources pooled under it for the macro average; None takes each data source by itself.
        portable: settings of the portable path (`portable/settings.py`); None for a tandem engine.
        keep_best: keep a copy of the checkpoint with the highest macro pass@k as `best` beside the others.

    Raises:
        ConfigError: a data source in two benchmarks.
    """

    validation: Literal["solo", "joint", "both"] = "solo"
    normaliser: Literal["senior", "response"] = "senior"
    junior_token_loss_weight: Share = 0.0
    plausible_sd: Positive = 6.0
    pass_k: Count = 4
    benchmarks: Annotated[dict[str, Annotated[list[str], Len(1)]], Len(1)] | None = None
    keep_best: bool = True
    portable: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        counts = Counter(source for group in (self.benchmarks or {}).values() for source in group)
        if twice := sorted(source for source, count in counts.items() if count > 1):
            raise ConfigError(f"{BLOCK}.benchmarks names {', '.join(twice)} more than once.", f"{BLOCK}.benchmarks")


SECTION = "tandem_config"
KEY = f"actor_rollout_ref.rollout.engine_kwargs.vllm.{SECTION}"

# Names of the published code (github.com/CSSLab/Tandem-RLVR, vllm/config/tandem.py) -> ours.
ALIASES = {
    "frozen_model": "junior_model",
    "frozen_model_revision": "junior_revision",
    "frozen_dtype": "junior_dtype",
    "frozen_quantization": "junior_quantization",
    "frozen_gpu_devices": "junior_device",
    "prob_primary": "prob_senior",
    "boundary_token_ids_path": "boundary_token_ids",
}
# Published settings of the junior's own engine. Here one engine holds both models: name -> what the junior follows.
FOLLOWED = {
    "frozen_tensor_parallel_size": "the junior is sharded like the senior (rollout.tensor_model_parallel_size)",
    "frozen_gpu_memory_utilization": "both models share the device and rollout.gpu_memory_utilization",
    "frozen_enforce_eager": "the junior follows rollout.enforce_eager",
    "frozen_max_model_len": "the junior reads what the senior reads (rollout.max_model_len)",
}
JUNIOR_WEIGHT = "tandem_jr_tkn_weight"


def canonical_settings(section: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings under our names, and one notice per published name that was read.

    A published name wins over ours, since ours is always there, from the recipe's yaml. Settings that are None are left
    out: the engine's defaults hold.

    Args:
        section: the content of `tandem_config`, with names of either kind.

    Raises:
        ConfigError: no block, a run without a junior, or a loss weight of the junior's tokens outside [0, 1].
    """
    if not isinstance(section, Mapping):
        raise ConfigError(f"{SECTION} is {type(section).__name__}; expected a block of settings.", KEY)
    settings = {key: value for key, value in section.items() if value is not None and key not in _PUBLISHED}
    published = {key: value for key, value in section.items() if value is not None and key in _PUBLISHED}
    notices = []
    for name, value in published.items():
        if name == "enabled":
            if value is not True:
                message = f"{SECTION}.enabled={value}: for a run without a junior use preset=grpo."
                raise ConfigError(message, f"{KEY}.enabled")
            notices.append(f"{SECTION}.enabled has no counterpart: rollout.name=tandem_vllm says it")
        elif name == JUNIOR_WEIGHT:
            check_value(Share, value, f"{KEY}.{name}")
            notices.append(f"{SECTION}.{name} is read as algorithm.tandem.junior_token_loss_weight={value!r}")
        elif name in FOLLOWED:
            notices.append(f"{SECTION}.{name} has no counterpart: {FOLLOWED[name]}")
        else:
            ours = ALIASES[name]
            settings[ours] = value
            notices.append(f"{SECTION}.{name} is read as {ours}={value!r}")
    return settings, notices


_PUBLISHED = {*ALIASES, *FOLLOWED, "enabled", JUNIOR_WEIGHT}


def junior_weight(settings: TandemSettings, section: Mapping[str, Any]) -> float:
    """Return the loss weight of the junior's tokens; the published name in `tandem_config` wins over ours."""
    weight = section.get(JUNIOR_WEIGHT)
    return settings.junior_token_loss_weight if weight is None else float(weight)


def check_followed(section: Mapping[str, Any], rollout: Any) -> None:
    """Refuse a published setting of the junior's own engine that asks for something else than the junior gets.

    Args:
        section: the content of `tandem_config`.
        rollout: `actor_rollout_ref.rollout`.

    Raises:
        ConfigError: with what the junior follows.
    """
    shards = rollout.tensor_model_parallel_size
    longest = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    kinds = {
        "frozen_tensor_parallel_size": (Annotated[int, Interval(ge=shards, le=shards)], shards),
        "frozen_gpu_memory_utilization": (Share, "a share from 0 to 1"),
        "frozen_enforce_eager": (Literal[bool(rollout.enforce_eager)], bool(rollout.enforce_eager)),
        "frozen_max_model_len": (Annotated[int, Ge(longest)], f"at least {longest}"),
    }
    for name, (kind, accepted) in kinds.items():
        if (value := section.get(name)) is None:
            continue
        try:
            check_value(kind, value, name)
        except ConfigError as error:
            raise ConfigError(
                f"{SECTION}.{name}={value!r}: {FOLLOWED[name]}; set it to {accepted}, or leave it out.", f"{KEY}.{name}"
            ) from error


def tandem_config(section: Mapping[str, Any]) -> TandemConfig:
    """Return the checked settings of an engine.

    Raises:
        ConfigError: an unknown key, no junior, or a value outside its range.
    """
    settings, _ = canonical_settings(section)
    try:
        return TandemConfig.from_mapping(settings)
    except ValueError as error:
        raise ConfigError(f"{KEY}: {error}", KEY) from error


def replace_section(
    engine_kwargs: MutableMapping[str, Any],
    senior_model: str | None = None,
    lora: bool = False,
    max_num_seqs: int | None = None,
) -> str:
    """Turn `tandem_config`, which vLLM does not know, into the engine arguments it stands for, in place.

    Args:
        engine_kwargs: `engine_kwargs.vllm` of the rollout.
        senior_model, lora, max_num_seqs: what the choice of `mode: auto` depends on.

    Returns:
        The mode and why it was chosen.

    Raises:
        ConfigError: no `tandem_config`, a faulty one, or an engine argument that was also given by hand.
    """
    section = engine_kwargs.pop(SECTION, None)
    if section is None:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name=tandem_vllm needs {KEY}, at least its junior_model.",
            f"{KEY}.junior_model",
        )
    settings, _ = canonical_settings(section)
    tandem_config(section)
    arguments = engine_arguments(settings, senior_model, lora, batch=max_num_seqs)
    for name in arguments.keys() & engine_kwargs.keys():
        if name == "additional_config" and CONFIG_KEY not in engine_kwargs[name]:
            arguments[name] = {**engine_kwargs[name], **arguments[name]}
        elif engine_kwargs[name] != arguments[name]:
            raise ConfigError(
                f"engine_kwargs.vllm.{name}={engine_kwargs[name]!r} is decided by tandem decoding; leave it out.",
                f"actor_rollout_ref.rollout.engine_kwargs.vllm.{name}",
            )
    engine_kwargs.update(arguments)
    return arguments["additional_config"][REASON_KEY]
