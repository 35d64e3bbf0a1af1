"""Get the responses of one model to a benchmark: from the store what is finished, from an engine the rest."""

import gc
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

from recipes.core.files import model_digest
from recipes.core.sampling import Request, Sampling
from recipes.errors import ConfigError, EnvironmentProblem
from recipes.evaluation import engines
from recipes.evaluation.benchmarks import Benchmark, Problem
from recipes.evaluation.checkpoint import model_folder
from recipes.evaluation.endpoint_engine import EndpointEngine
from recipes.evaluation.engines import TandemEngine, VllmEngine
from recipes.evaluation.prompts import encode, messages
from recipes.evaluation.sample_store import OnDone, SampledResponse, SampleStore
from recipes.evaluation.settings import ModelSpec, Settings, problem_seed, resolve

Together = Literal["sentence_handoff", "word_handoff"]
Role = Literal["model", "partner"]
DEFAULT_MEMORY_SHARE = 0.9


def source_of(spec: ModelSpec, settings: Settings) -> str:
    """What a model's responses are stored under; several endpoints serve one model, whichever of them are up.

    Raises:
        LaunchError: no such model, or a verl checkpoint that cannot be exported.
    """
    if len(spec.endpoints) > 1:
        return str(spec.served)
    return spec.endpoints[0] if spec.endpoints else model_folder(str(spec.path), settings.output_dir / "merged")


def endpoint_engine(spec: ModelSpec, settings: Settings, coins: Mapping[str, Any] | None = None) -> EndpointEngine:
    """The engine of a model behind endpoints.

    Args:
        coins: how a tandem engine draws the authors of a word handoff; None lets the spec's author write alone.
    """
    tokenizer = None
    if spec.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(spec.tokenizer)
    return EndpointEngine(
        spec.endpoints,
        str(spec.served),
        tokenizer=tokenizer,
        request_body=None if spec.author is None else partial(tandem_body, spec.author, coins),
        **asdict(settings.endpoint),
    )


def tandem_body(author: str, coins: Mapping[str, Any] | None, request: Request) -> dict[str, Any]:
    """What tells a tandem engine who writes a response; the coins of a word handoff are those of `TandemEngine`."""
    chosen: dict[str, Any] = {"selection_strategy": author}
    if coins is not None:
        own = {"prob_senior": coins["prob_own"], "max_gap_tokens": coins["max_gap_tokens"]}
        chosen = {"selection_strategy": "word", "word_align": "after", "seed": request.seed} | own
    return {"vllm_xargs": {"tandem": json.dumps(chosen)}}


class Generator:
    """One model, alone or writing together with the partner; loaded when the first response is missing.

    Args:
        together: the handoff in which it writes; None for alone.

    Raises:
        LaunchError: no such model.
    """

    def __init__(self, spec: ModelSpec, settings: Settings, together: Together | None = None):
        self._spec, self._settings, self._together = spec, settings, together
        self.source = source_of(spec, settings)
        self._partner = settings.partner.model if together else None
        self._partner_source = source_of(self._partner, settings) if self._partner else None
        self._engines: dict[str, Any] = {}
        self._generation_config = self._read_generation_config() if settings.sampling.preset == "model" else None

    def sampling(self, benchmark: str) -> Sampling:
        """How this model samples on a benchmark.

        Raises:
            ConfigError: several responses are asked for and the model's generation config is greedy.
        """
        return resolve(self._settings.sampling, self._generation_config, benchmark)

    def _read_generation_config(self) -> dict[str, Any]:
        from transformers import GenerationConfig

        name = self._spec.name
        folder = self._spec.tokenizer if self._spec.endpoints else self.source
        if folder is None:
            raise ConfigError(f"{name}: sampling.preset=model needs tokenizer=, the folder of the endpoint's", "models")
        try:
            return GenerationConfig.from_pretrained(folder).to_diff_dict()
        except OSError as error:
            raise ConfigError(
                f"{name}: sampling.preset=model needs a generation_config.json, and {folder} has none; set "
                "sampling.temperature and sampling.max_tokens instead",
                "sampling.preset",
            ) from error

    def samples(self, benchmark: Benchmark, name: str) -> dict[str, list[SampledResponse]]:
        """All responses to a benchmark, finished problems taken from `output_dir/name`.

        Args:
            name: of the model, and of its folder.

        Raises:
            LaunchError: the store holds responses of other settings, or an engine fails.
        """
        settings = self._settings
        sampling = self.sampling(benchmark.name)
        store = SampleStore(
            settings.output_dir / name / f"{benchmark.name}.responses.jsonl",
            {
                "model": self.source,
                "weights": [model_digest(self.source), model_digest(self._partner_source)],
                "benchmark": benchmark.fingerprint,
                "benchmark_prompt": benchmark.prompt,
                "sampling": asdict(sampling) | {"seed": settings.sampling.seed},
                "prompt": asdict(settings.prompt),
                "handoff": self.handoff_settings(),
            },
            sampling.n,
        )

        try:
            missing = [problem for problem in benchmark.problems if problem.id not in store.finished]
            if missing and self._together == "sentence_handoff":
                self._hand_off(benchmark, missing, store.add)
            elif missing:
                requests = [self._request(benchmark, problem) for problem in missing]
                self._engine("model").write(requests, sampling, store.add)
            return {problem.id: store.finished[problem.id] for problem in benchmark.problems}
        finally:
            store.close()

    def handoff_settings(self) -> dict[str, Any] | None:
        """What of the handoff's settings decides the responses."""
        options = self._settings.handoff
        if self._together == "word_handoff":
            return {"partner": self._partner_source, "by": "word", **self._coins()}
        if self._together == "sentence_handoff":
            keys = ("starts", "separator", "max_rounds")
            return {"partner": self._partner_source, **{key: getattr(options, key) for key in keys}}
        return None

    def _coins(self) -> dict[str, Any]:
        options = self._settings.handoff
        return {"prob_own": options.prob_own, "max_gap_tokens": options.max_gap_tokens}

    def _request(self, benchmark: Benchmark, problem: Problem) -> Request:
        seed = problem_seed(self._settings.sampling.seed, benchmark.name, problem.id)
        tokenizer, options = self._engine("model").tokenizer, self._settings.prompt
        if tokenizer is not None:
            return Request(problem.id, encode(tokenizer, problem, benchmark, options), seed)
        if not options.chat_template:
            raise ConfigError(
                f"{self._spec.name}: a bare prompt for an endpoint needs its tokenizer; give the model as "
                "{endpoint: ..., model: ..., tokenizer: ...}",
                "models",
            )
        return Request(problem.id, messages(problem, benchmark, options), seed)

    def _engine(self, role: Role) -> Any:
        if role not in self._engines:
            self._engines[role] = self._load(self._spec if role == "model" else self._partner, role)
        return self._engines[role]

    def _load(self, spec: ModelSpec, role: Role) -> Any:
        by_word = self._together == "word_handoff"
        if spec.endpoints:
            return endpoint_engine(spec, self._settings, self._coins() if by_word else None)
        if by_word:
            return TandemEngine(self.source, self._partner_source, self._settings.engine_options, **self._coins())
        return VllmEngine(self.source if role == "model" else self._partner_source, self.engine_options(role))

    def engine_options(self, role: Role) -> dict[str, Any]:
        """Options of vLLM for the model or its partner: they share the device's memory when both run here.

        vLLM refuses to start when less than `gpu_memory_utilization` of the device is free; two engines with the share
        meant for one cannot both start.
        """
        options = self._settings.engine_options
        if self._partner is None or self._partner.endpoints or self._spec.endpoints:
            return options
        share = self._settings.handoff.partner_memory
        whole = options.get("gpu_memory_utilization", DEFAULT_MEMORY_SHARE)
        return options | {"gpu_memory_utilization": round(whole * (share if role == "partner" else 1 - share), 4)}

    def _hand_off(self, benchmark: Benchmark, problems: Sequence[Problem], on_done: OnDone) -> None:
        options, sampling = self._settings.handoff, self.sampling(benchmark.name)
        model, partner = self._engine("model"), self._engine("partner")
        if model.tokenizer.get_vocab() != partner.tokenizer.get_vocab():
            raise EnvironmentProblem("a handoff by token ids needs two models with the same vocabulary")
        window = min(model.model_length, partner.model_length)
        prompts = [encode(model.tokenizer, problem, benchmark, self._settings.prompt) for problem in problems]
        seeds = [problem_seed(self._settings.sampling.seed, benchmark.name, problem.id) for problem in problems]
        rows = [(position, number) for position in range(len(problems)) for number in range(sampling.n)]
        ended = engines.alternate(
            [prompts[position] for position, _ in rows],
            lambda author, turns: self._engine(author).write_parts(turns, sampling, options.separator),
            ("model", "partner") if options.starts == "model" else ("partner", "model"),
            [engines.shared_budget(sampling.max_tokens, window, len(prompts[position])) for position, _ in rows],
            [(seeds[position] + 1_000_003 * number) & 0x7FFFFFFF for position, number in rows],
            options.max_rounds,
        )
        finished: dict[int, dict[int, SampledResponse]] = {}
        for row, response in ended:
            position, number = rows[row]
            samples = finished.setdefault(position, {})
            samples[number] = _sample(problems[position].id, number, response, model.tokenizer, sampling.stop)
            if len(samples) == sampling.n:
                on_done(problems[position].id, [samples[number] for number in range(sampling.n)])

    def close(self) -> None:
        """Let the engines go, so that the next model finds the memory free."""
        self._engines.clear()
        gc.collect()


def _sample(
    problem: str, number: int, response: engines.Handoff, tokenizer: Any, stops: Sequence[str]
) -> SampledResponse:
    """A response of two authors; its text ends before the first text that ends one."""
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    text = decode(response.token_ids)
    text = text[: min([position for stop in stops if (position := text.find(stop)) >= 0], default=len(text))]
    spans = engines.author_spans(response.token_ids, response.authors, "model", decode)
    return SampledResponse(
        problem,
        number,
        text,
        tokens=len(response.token_ids),
        finish_reason=response.ended,
        prompt_tokens=len(response.prompt),
        own_tokens=response.authors.count("model"),
        own_spans=engines.clipped(spans, len(text)),
    )
