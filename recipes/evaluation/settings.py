"""The composed configuration of an evaluation, read into typed values before anything is loaded."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval, Len
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipes.core.settings import Count, CountOrZero, Positive, Share, check_value, read
from recipes.errors import ConfigError
from recipes.evaluation.metrics import MetricOptions
from recipes.evaluation.option_kinds import check_options
from recipes.evaluation.prompts import OWN_SHOTS, PromptOptions
from recipes.evaluation.sampling import resolve
from recipes.evaluation.stats import Macro, read_macros


@dataclass(frozen=True)
class ModelSpec:
    """A model to evaluate: a path, or endpoints with the name they serve.

    Attributes:
        name: in tables and folders.
        path: HF folder, verl checkpoint or hub id; None for endpoints.
        endpoints: URLs; none for a path.
        served: the endpoints' name of the model.
        tokenizer: folder or hub id whose chat template and tokenizer make the prompts of an endpoint; without it the
            endpoint gets messages and applies its own.
        author: "senior" or "junior" where the endpoints are tandem engines, which hold both models.
        weights: folder or hub id of such a junior, since its engine tells log-probabilities of a text by the senior
            alone.
    """

    name: str
    path: str | None = None
    endpoints: tuple[str, ...] = ()
    served: str | None = None
    tokenizer: str | None = None
    author: Literal["senior", "junior"] | None = None
    weights: str | None = None


# What can be read with a partner -> how the two write each response, None where the model writes alone.
READINGS: dict[str, Literal["separator", "word"] | None] = {
    "sentence_handoff": "separator",
    "word_handoff": "word",
    "legibility": None,
}


# Nodes whose keys are names of others: of vLLM's arguments, of benchmarks.
_OPEN = {"data", "engine", "endpoint.extra_body"}


@dataclass(frozen=True)
class PartnerReadings:
    """The partner beside which every model is evaluated, after it was evaluated alone, and what is read with it."""

    model: ModelSpec
    readings: tuple[str, ...]


@dataclass(frozen=True)
class HandoffOptions:
    """How two models write in turns; config/evaluation.yaml describes each option."""

    by: Literal["separator", "word"]
    prob_own: Share
    max_gap_tokens: Count
    starts: Literal["model", "partner"]
    separator: str
    max_rounds: Count
    partner_memory: Annotated[float, Interval(gt=0, lt=1)]
    solo: str | None


@dataclass(frozen=True)
class EndpointOptions:
    """How endpoints are asked, see `endpoint_engine.EndpointEngine`."""

    concurrency: Count
    timeout: Positive
    max_retries: CountOrZero
    extra_body: dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Everything a run needs, checked."""

    models: tuple[ModelSpec, ...]
    benchmarks: tuple[str, ...]
    data: Mapping[str, str]
    data_dir: Path
    limit: int | None
    sampling: Mapping[str, Any]
    prompt: PromptOptions
    metrics: MetricOptions
    grading: Mapping[str, Mapping[str, Any]]
    macro: Mapping[str, Macro]
    partner: ModelSpec | None
    handoff: HandoffOptions
    legibility: ModelSpec | None
    legibility_responses: int | None
    readings: PartnerReadings | None
    engine: Mapping[str, Any]
    engines: int
    endpoint: EndpointOptions
    score_only: Path | None
    output_dir: Path
    config: Mapping[str, Any]


def read_settings(overrides: Sequence[str]) -> Settings:
    """Compose the configuration with Hydra overrides and check it.

    Raises:
        ConfigError: an unknown key, a value out of range, or keys that contradict each other.
    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("recipes.evaluation.config", version_base=None):
            composed = compose("evaluation", overrides=list(overrides))
            _refuse_unknown(composed, compose("evaluation"))
        config = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ or error
        raise ConfigError(" ".join(line.strip() for line in f"{error} ({cause})".splitlines()[:3])) from error
    check_options(config)
    _check_sampling(config["sampling"], config["benchmarks"])
    wanted = config["k"] if isinstance(config["k"], list) else [config["k"]]
    check_value(Annotated[list[Count], Len(1)], wanted, "k")
    partner = config["handoff"]["partner"]
    turns = {key: value for key, value in config["handoff"].items() if key != "partner"}
    settings = Settings(
        models=tuple(_model(entry, "models") for entry in config["models"]),
        benchmarks=tuple(config["benchmarks"]),
        data=config["data"],
        data_dir=Path(config["data_dir"]),
        limit=config["limit"],
        sampling=config["sampling"],
        prompt=read(PromptOptions, config["prompt"], "prompt"),
        metrics=MetricOptions(
            k=tuple(sorted(set(wanted))), level=config["level"], seed=config["sampling"]["seed"], **config["metrics"]
        ),
        grading=config["grading"],
        macro=read_macros(config["macro"]),
        partner=_model(partner, "handoff.partner") if partner else None,
        handoff=read(HandoffOptions, turns, "handoff"),
        legibility=_model(reader, "legibility.partner") if (reader := config["legibility"]["partner"]) else None,
        legibility_responses=config["legibility"]["responses"],
        readings=_readings(config["partner"]),
        engine={key: value for key, value in config["engine"].items() if value is not None},
        engines=config["engines"],
        endpoint=read(EndpointOptions, config["endpoint"], "endpoint"),
        score_only=Path(config["score_only"]) if config["score_only"] else None,
        output_dir=Path(config["output_dir"]),
        config=config,
    )
    _check(settings)
    return settings


def _refuse_unknown(node: DictConfig, known: DictConfig, prefix: str = "") -> None:
    """Refuse a key that was added with a plus sign where nothing would read it."""
    for name in node:
        key = f"{prefix}{name}"
        if name not in known:
            near = difflib.get_close_matches(str(name), map(str, known), n=1, cutoff=0.6)
            hint = f"; did you mean {prefix}{near[0]}?" if near else ""
            raise ConfigError(f"unknown key {key!r}: the evaluation would not read it{hint}", key)
        if key not in _OPEN and isinstance(known[name], DictConfig) and isinstance(node[name], DictConfig):
            _refuse_unknown(node[name], known[name], f"{key}.")


def _check_sampling(config: Mapping[str, Any], benchmarks: Sequence[str]) -> None:
    """Refuse bad values before a model is looked at; with preset=model its generation config is checked later."""
    names = {Path(name).stem for name in benchmarks}
    unknown = sorted(set(config["budgets"] or {}) - names)
    if unknown:
        raise ConfigError(
            f"sampling.budgets: {', '.join(unknown)} is none of the benchmarks {', '.join(sorted(names))}",
            "sampling.budgets",
        )
    recommended = {"do_sample": True} if config["preset"] == "model" else None
    for name in names:
        resolve(config, recommended, name)


def _model(entry: Any, key: str) -> ModelSpec:
    if isinstance(entry, str):
        return ModelSpec(name=_short_name(entry), path=entry)
    known = {"name", "path", "endpoint", "model", "tokenizer"}
    well_formed = isinstance(entry, dict) and entry.keys() <= known
    if not well_formed or bool(entry.get("path")) == bool(entry.get("endpoint")):
        raise ConfigError(
            f"{key}: expected a path, or one of path and endpoint with {sorted(known)}, found {entry}", key
        )
    if entry.get("endpoint") and not entry.get("model"):
        raise ConfigError(f"{key}: the endpoint {entry['endpoint']} needs model=, the name it serves", key)
    name = entry.get("name") or _short_name(entry.get("path") or entry["model"])
    urls = entry.get("endpoint") or []
    urls = tuple([urls] if isinstance(urls, str) else urls)
    if len(set(urls)) < len(urls):
        raise ConfigError(f"{key}: an endpoint is named twice in {list(urls)}", key)
    return ModelSpec(name, entry.get("path"), urls, entry.get("model"), entry.get("tokenizer"))


def _readings(config: Mapping[str, Any]) -> PartnerReadings | None:
    wanted = config["readings"]
    if not config["model"]:
        if wanted:
            raise ConfigError(f"partner.readings={wanted} needs partner.model, the model to read with", "partner.model")
        return None
    unknown = [name for name in wanted or () if name not in READINGS] if isinstance(wanted, list | None) else [wanted]
    if unknown or wanted == []:
        raise ConfigError(
            f"partner.readings: expected some of {', '.join(READINGS)}, found {wanted}", "partner.readings"
        )
    return PartnerReadings(
        _model(config["model"], "partner.model"), tuple(name for name in READINGS if not wanted or name in wanted)
    )


def _short_name(path: str) -> str:
    parts = [part for part in path.rstrip("/").split("/") if part not in ("actor", "huggingface")]
    return "_".join(parts[-2:]) if parts[-1].startswith("global_step_") else parts[-1]


def _check(settings: Settings) -> None:
    if not settings.benchmarks:
        raise ConfigError("benchmarks is empty; name some, such as benchmarks=[math_500]", "benchmarks")
    if settings.score_only is not None:
        if settings.models or len(settings.benchmarks) != 1:
            raise ConfigError("score_only grades one file again: give one benchmark and no models", "score_only")
    elif not settings.models:
        raise ConfigError("models is empty; name some, such as models=[Qwen/Qwen3-4B]", "models")
    names = [model.name for model in settings.models]
    if len(set(names)) != len(names):
        raise ConfigError(
            f"two models have the same name, {names}; give one of them {{name: ..., path: ...}}", "models"
        )
    largest, n = settings.metrics.k[-1], settings.sampling["n"]
    if settings.score_only is None and largest > n:
        raise ConfigError(f"k={largest} needs sampling.n of at least as many, found {n}", "sampling.n")
    if settings.prompt.few_shot == OWN_SHOTS and settings.prompt.chat_template:
        raise ConfigError(
            "prompt.few_shot=own is a bare prompt: set prompt.chat_template=false", "prompt.chat_template"
        )
    _check_handoff(settings)
    _check_readings(settings)


def _check_readings(settings: Settings) -> None:
    reader = settings.legibility
    if reader is not None and reader.endpoints and not reader.tokenizer:
        raise ConfigError("legibility.partner: an endpoint reads token ids: give its tokenizer=", "legibility.partner")
    if settings.readings is None:
        return
    if settings.partner is not None or settings.handoff.solo is not None or settings.legibility is not None:
        raise ConfigError(
            "partner.model evaluates each model alone and with the partner: leave handoff.partner, handoff.solo and "
            "legibility.partner out",
            "partner.model",
        )
    if settings.score_only:
        raise ConfigError("partner.model writes responses, and score_only grades some: choose one", "score_only")
    if settings.readings.model.endpoints and not settings.readings.model.tokenizer:
        raise ConfigError("partner.model: an endpoint goes on from token ids: give its tokenizer=", "partner.model")
    for name in settings.readings.readings:
        if by := READINGS[name]:
            try:
                _check_handoff(with_partner(settings, by))
            except ConfigError as error:
                raise ConfigError(f"partner.readings, {name}: {error}", error.key) from error


def with_partner(settings: Settings, by: Literal["separator", "word"]) -> Settings:
    """Settings of a handoff with the partner of the readings."""
    assert settings.readings is not None
    return dataclasses.replace(
        settings, partner=settings.readings.model, handoff=dataclasses.replace(settings.handoff, by=by)
    )


def _check_handoff(settings: Settings) -> None:
    if settings.partner is None:
        return
    if settings.score_only:
        raise ConfigError("a handoff writes responses, and score_only grades some: choose one", "score_only")
    if settings.engines > 1 and settings.handoff.by == "separator":
        raise ConfigError("handoff.by=separator: each turn waits for the whole batch; use engines=1", "engines")
    endpoints = [spec for spec in (*settings.models, settings.partner) if spec.endpoints]
    if endpoints and settings.handoff.by == "word":
        raise ConfigError("handoff.by=word runs both models in one engine here: it takes no endpoint", "handoff.by")
    for spec in endpoints:
        if not spec.tokenizer:
            raise ConfigError(f"{spec.name}: a handoff by token ids needs tokenizer=", "models")
