"""The composed configuration of an evaluation, read into typed values before anything is loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Len, Lt
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipes.core.sampling import Sampling
from recipes.core.settings import Count, CountOrZero, NonNegative, Positive, PositiveShare, Share, read
from recipes.errors import ConfigError
from recipes.evaluation.grade import MetricOptions, Rule
from recipes.evaluation.prompts import OWN_SHOTS, PromptOptions
from recipes.evaluation.stats import Abstention, Macro, read_macros
from reward_fns import math, multiple_choice
from reward_fns.extract import AnswerScope

Text = Annotated[str, Len(1)]
Reading = Literal["sentence_handoff", "word_handoff", "legibility"]
# The response limit of thinking models whose generation config states none.
THINKING_TOKENS = 32_768
_GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "max_tokens": 3072}


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


@dataclass(frozen=True)
class SamplingOptions:
    """How responses are sampled; what is None comes from the preset."""

    preset: Literal["greedy", "model"]
    n: Count
    temperature: NonNegative | None
    top_p: PositiveShare | None
    top_k: Annotated[int, Ge(-1)] | None
    max_tokens: Count | None
    budgets: dict[str, Count] | None
    stop: tuple[Text, ...]
    seed: int


@dataclass(frozen=True)
class MathGrading:
    """Options of `reward_fns.math`."""

    mode: math.Mode
    answer_scope: AnswerScope
    time_limit: Positive
    workers: Count | None


@dataclass(frozen=True)
class ChoiceGrading:
    """Options of `reward_fns.multiple_choice`; None is the benchmark's own."""

    style: multiple_choice.Style | None
    letters: Text | None
    guess: bool | None


@dataclass(frozen=True)
class GradingOptions:
    """How answers are read and compared, by kind of benchmark."""

    math: MathGrading
    multiple_choice: ChoiceGrading


@dataclass(frozen=True)
class MetricRules:
    """See `metrics.MetricOptions`."""

    denominator: Rule
    majority: Literal["expected", "first"]
    abstention: Abstention


@dataclass(frozen=True)
class HandoffOptions:
    """How two models write in turns; config/evaluation.yaml describes each option."""

    prob_own: Share
    max_gap_tokens: Count
    starts: Literal["model", "partner"]
    separator: Text
    max_rounds: Count
    partner_memory: Annotated[float, Interval(gt=0, lt=1)]


@dataclass(frozen=True)
class PartnerOptions:
    """The partner beside which every model is evaluated, after it was evaluated alone, and what is read with it."""

    model: ModelSpec | None
    readings: Annotated[tuple[Reading, ...], Len(1)] | None
    legibility_responses: Count | None

    def reads(self, reading: Reading) -> bool:
        """Whether this reading is asked for; without a list all are."""
        return self.model is not None and (self.readings is None or reading in self.readings)


@dataclass(frozen=True)
class EndpointOptions:
    """How endpoints are asked, see `endpoint_engine.EndpointEngine`."""

    concurrency: Count
    timeout: Positive
    max_retries: CountOrZero
    extra_body: dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """config/evaluation.yaml, which describes each option, checked."""

    models: tuple[ModelSpec, ...]
    benchmarks: Annotated[tuple[Text, ...], Len(1)]
    data: dict[str, Text | None]
    data_dir: Path
    limit: Count | None
    k: Annotated[tuple[Count, ...], Len(1)]
    macro: Any
    note: str
    level: Annotated[float, Gt(0), Lt(1)]
    output_dir: Path
    score_only: Path | None
    sampling: SamplingOptions
    prompt: PromptOptions
    grading: GradingOptions
    metrics: MetricRules
    partner: PartnerOptions
    handoff: HandoffOptions
    engine: dict[str, Any]
    endpoint: EndpointOptions

    @property
    def macros(self) -> dict[str, Macro]:
        """Macro averages by name."""
        return read_macros(self.macro)

    @property
    def metric_options(self) -> MetricOptions:
        """Which numbers, and by which rules."""
        return MetricOptions(
            k=tuple(sorted(set(self.k))), level=self.level, seed=self.sampling.seed, **asdict(self.metrics)
        )

    @property
    def engine_options(self) -> dict[str, Any]:
        """Options of `vllm.LLM`."""
        return {key: value for key, value in self.engine.items() if value is not None}

    def grading_of(self, kind: str) -> dict[str, Any]:
        """The options of one kind's grader that are set."""
        return {key: value for key, value in asdict(getattr(self.grading, kind)).items() if value is not None}


def read_settings(overrides: Sequence[str]) -> Settings:
    """Compose the configuration with Hydra overrides and check it.

    Raises:
        ConfigError: an unknown key, a value out of range, or keys that contradict each other.
    """
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("recipes.evaluation.config", version_base=None):
            composed = compose("evaluation", overrides=list(overrides))
        config = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ or error
        raise ConfigError(" ".join(line.strip() for line in f"{error} ({cause})".splitlines()[:3])) from error
    if isinstance(config["models"], list):
        config["models"] = [_model(entry, "models") for entry in config["models"]]
    if isinstance(config["partner"], dict) and config["partner"]["model"]:
        config["partner"]["model"] = _model(config["partner"]["model"], "partner.model")
    if isinstance(config["k"], int):
        config["k"] = [config["k"]]
    settings = read(Settings, config, "")
    _check(settings)
    _check_partner(settings)
    return settings


def _model(entry: Any, key: str) -> dict[str, Any]:
    """The fields of a `ModelSpec` from a path or a mapping."""
    if isinstance(entry, str):
        return asdict(ModelSpec(name=_short_name(entry), path=entry))
    keys = {"name", "path", "endpoint", "model", "tokenizer"}
    well_formed = isinstance(entry, dict) and entry.keys() <= keys
    if not well_formed or bool(entry.get("path")) == bool(entry.get("endpoint")):
        raise ConfigError(
            f"{key}: expected a path, or one of path and endpoint with {sorted(keys)}, found {entry}", key
        )
    urls = entry.get("endpoint") or []
    urls = tuple([urls] if isinstance(urls, str) else urls)
    if urls and not entry.get("model"):
        raise ConfigError(f"{key}: the endpoint {urls[0]} needs model=, the name it serves", key)
    if len(set(urls)) < len(urls):
        raise ConfigError(f"{key}: an endpoint is named twice in {list(urls)}", key)
    name = entry.get("name") or _short_name(entry.get("path") or entry["model"])
    return asdict(ModelSpec(name, entry.get("path"), urls, entry.get("model"), entry.get("tokenizer")))


def _short_name(path: str) -> str:
    parts = [part for part in path.rstrip("/").split("/") if part not in ("actor", "huggingface")]
    return "_".join(parts[-2:]) if parts[-1].startswith("global_step_") else parts[-1]


def _check(settings: Settings) -> None:
    names = [Path(name).stem for name in settings.benchmarks]
    if len(set(names)) < len(names):
        raise ConfigError(f"benchmarks: two have the same name in {names}, and so one place for results", "benchmarks")
    if unknown := sorted(set(settings.sampling.budgets or {}) - set(names)):
        raise ConfigError(
            f"sampling.budgets: {', '.join(unknown)} is none of the benchmarks {', '.join(names)}", "sampling.budgets"
        )
    # With preset=model the model's generation config is checked when it is read.
    for name in names:
        resolve(settings.sampling, {"do_sample": True}, name)
    if settings.score_only is not None:
        if settings.models or len(names) != 1:
            raise ConfigError("score_only grades one file again: give one benchmark and no models", "score_only")
    elif not settings.models:
        raise ConfigError("models is empty; name some, such as models=[Qwen/Qwen3-4B]", "models")
    elif max(settings.k) > settings.sampling.n:
        raise ConfigError(
            f"k={max(settings.k)} needs sampling.n of at least as many, found {settings.sampling.n}", "sampling.n"
        )
    models = [model.name for model in settings.models]
    if len(set(models)) != len(models):
        raise ConfigError(f"two models have one name, {models}; give one of them {{name: ..., path: ...}}", "models")
    if settings.prompt.few_shot == OWN_SHOTS and settings.prompt.chat_template:
        raise ConfigError(
            "prompt.few_shot=own is a bare prompt: set prompt.chat_template=false", "prompt.chat_template"
        )
    read_macros(settings.macro)


def _check_partner(settings: Settings) -> None:
    partner = settings.partner
    if partner.model is None:
        if partner.readings:
            raise ConfigError("partner.readings needs partner.model, the model to read with", "partner.model")
        return
    if settings.score_only:
        raise ConfigError("partner.model writes responses, and score_only grades some: choose one", "score_only")
    handoff = partner.reads("sentence_handoff") or partner.reads("word_handoff")
    for key, spec in [("partner.model", partner.model), *(("models", one) for one in settings.models if handoff)]:
        if spec.endpoints and partner.reads("word_handoff"):
            raise ConfigError(
                f"{spec.name}: word_handoff runs both models in one engine here, and takes no endpoint: leave it out "
                "of partner.readings",
                "partner.readings",
            )
        if spec.endpoints and not spec.tokenizer:
            raise ConfigError(f"{key}: {spec.name} goes on from token ids: give its tokenizer=", key)


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


def resolve(options: SamplingOptions, generation_config: Mapping[str, Any] | None, benchmark: str) -> Sampling:
    """The sampling of one model on one benchmark; what the options leave open comes from their preset.

    Args:
        generation_config: the model's own, for `preset: model`.
        benchmark: whose entry in `budgets` replaces the response limit.

    Raises:
        ConfigError: values out of range.
    """
    values = _GREEDY if options.preset == "greedy" else recommended(generation_config or {})
    chosen = {key: getattr(options, key) for key in ("temperature", "top_p", "top_k", "max_tokens")}
    values = values | {key: value for key, value in chosen.items() if value is not None}
    if budget := (options.budgets or {}).get(benchmark):
        values["max_tokens"] = budget
    try:
        return Sampling(n=options.n, stop=options.stop, **values)
    except ConfigError as error:
        raise ConfigError(f"sampling: {error}", "sampling") from error


def problem_seed(run_seed: int, benchmark: str, problem: str) -> int:
    """Seed of a problem, a pure function of run seed, benchmark and problem, below 2^31."""
    return int.from_bytes(sha256(f"{run_seed}/{benchmark}/{problem}".encode()).digest()[:4]) & 0x7FFFFFFF
