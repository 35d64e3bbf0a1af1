"""Get the responses of one model to a benchmark: from the store what is finished, from an engine the rest."""

import gc
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from recipes.core.sampling import Request, Sampling
from recipes.errors import ConfigError, EnvironmentProblem
from recipes.evaluation import handoff
from recipes.evaluation.benchmark import Benchmark
from recipes.evaluation.checkpoint import model_folder
from recipes.evaluation.endpoint_engine import EndpointEngine
from recipes.evaluation.engines import ShardedEngine, TandemEngine, VllmEngine, memory_part
from recipes.evaluation.problem import Problem
from recipes.evaluation.prompts import encode, messages
from recipes.evaluation.sample_store import SampledResponse, SampleStore
from recipes.evaluation.sampling import OnDone, problem_seed, resolve
from recipes.evaluation.settings import ModelSpec, Settings

WORD_KEYS = ("prob_own", "max_gap_tokens")


def _text(tokenizer: Any, token_ids: Sequence[int], stops: Sequence[str]) -> str:
    """The text of a response, up to the first text that ends one."""
    text = tokenizer.decode(token_ids, skip_special_tokens=True)
    ends = [position for stop in stops if (position := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def source_of(spec: ModelSpec, merged: Path) -> str:
    """What a model's responses are stored under; several endpoints serve one model, whichever of them are up."""
    if len(spec.endpoints) > 1:
        return str(spec.served)
    return spec.endpoints[0] if spec.endpoints else model_folder(str(spec.path), merged)


def endpoint_engine(spec: ModelSpec, settings: Settings, word: Mapping[str, Any] | None = None) -> EndpointEngine:
    """The engine of a model behind endpoints.

    Args:
        word: how a tandem engine draws the authors of a word handoff; None lets the spec's author write alone.
    """
    tokenizer = None
    if spec.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(spec.tokenizer)
    return EndpointEngine(
        spec.endpoints,
        str(spec.served),
        tokenizer=tokenizer,
        request_body=None if spec.author is None else partial(tandem_body, spec.author, word),
        **asdict(settings.endpoint),
    )


def tandem_body(author: str, word: Mapping[str, Any] | None, request: Request) -> dict[str, Any]:
    """What tells a tandem engine who writes a response; the coins of a word handoff are those of `TandemEngine`."""
    chosen: dict[str, Any] = {"selection_strategy": author}
    if word is not None:
        own = {"prob_senior": word["prob_own"], "max_gap_tokens": word["max_gap_tokens"]}
        chosen = {"selection_strategy": "word", "word_align": "after", "seed": request.seed} | own
    return {"vllm_xargs": {"tandem": json.dumps(chosen)}}


def ignore(problem: str, samples: Sequence[SampledResponse]) -> None:
    """Do nothing when a problem is finished."""


class Generator:
    """One model, loaded when the first response is missing."""

    def __init__(self, spec: ModelSpec, settings: Settings):
        """Resolve the model, which may export a verl checkpoint.

        Raises:
            LaunchError: no such model.
        """
        self._spec, self._settings = spec, settings
        merged = settings.output_dir / "merged"
        self.source = source_of(spec, merged)
        self._partner: ModelSpec | None = settings.partner
        self._partner_source = None
        if self._partner is not None:
            self._partner_source = source_of(self._partner, merged)
        self._engines: dict[str, Any] = {}
        self._generation_config = self._read_generation_config() if settings.sampling["preset"] == "model" else None

    def sampling(self, benchmark: str) -> Sampling:
        """How this model samples on a benchmark.

        Raises:
            ConfigError: several responses are asked for and the model's generation config is greedy.
        """
        return resolve(self._settings.sampling, self._generation_config, benchmark)

    def _read_generation_config(self) -> dict[str, Any]:
        from transformers import GenerationConfig

        folder = self._spec.tokenizer if self._spec.endpoints else self.source
        if folder is None:
            raise ConfigError(
                f"{self._spec.name}: sampling.preset=model needs tokenizer=, the folder of the endpoint's own", "models"
            )
        try:
            return GenerationConfig.from_pretrained(folder).to_diff_dict()
        except OSError as error:
            raise ConfigError(
                f"{self._spec.name}: sampling.preset=model needs a generation_config.json, and {folder} has none; set "
                "sampling.temperature and sampling.max_tokens instead",
                "sampling.preset",
            ) from error

    def samples(self, benchmark: Benchmark, name: str, on_done: OnDone = ignore) -> dict[str, list[SampledResponse]]:
        """All responses to a benchmark, finished problems taken from `output_dir/name`.

        Args:
            benchmark: the problems.
            name: of the model, and of its folder.
            on_done: called with each problem and its responses as they are stored, while the engine writes the next.

        Raises:
            LaunchError: the store holds responses of other settings, or an engine fails.
        """
        settings = self._settings
        sampling = self.sampling(benchmark.name)
        store = SampleStore(
            settings.output_dir / name / f"{benchmark.name}.responses.jsonl",
            {
                "model": self.source,
                "benchmark": benchmark.fingerprint,
                "benchmark_prompt": benchmark.prompt,
                "sampling": asdict(sampling) | {"seed": settings.sampling["seed"]},
                "prompt": asdict(settings.prompt),
                "handoff": self._handoff_settings(),
            },
            sampling.n,
        )

        def keep(problem: str, samples: Sequence[SampledResponse]) -> None:
            store.add(problem, samples)
            on_done(problem, samples)

        try:
            left = [problem for problem in benchmark.problems if problem.id not in store.finished]
            if left and self._partner_source and settings.handoff.by == "separator":
                self._hand_off(benchmark, left, keep)
            elif left:
                requests = [self._request(benchmark, problem) for problem in left]
                self._engine("model").write(requests, sampling, keep)
            return {problem.id: store.finished[problem.id] for problem in benchmark.problems}
        finally:
            store.close()

    def _handoff_settings(self) -> dict[str, Any] | None:
        if self._partner_source is None:
            return None
        chosen = asdict(self._settings.handoff)
        if chosen["by"] == "word":
            return {"partner": self._partner_source} | {key: chosen[key] for key in ("by", *WORD_KEYS)}
        return {
            "partner": self._partner_source,
            "starts": chosen["starts"],
            "separator": chosen["separator"],
            "max_rounds": chosen["max_rounds"],
        }

    def _request(self, benchmark: Benchmark, problem: Problem) -> Request:
        seed = problem_seed(self._settings.sampling["seed"], benchmark.name, problem.id)
        tokenizer = self._known_tokenizer()
        if tokenizer is None:
            if not self._settings.prompt.chat_template:
                raise ConfigError(
                    f"{self._spec.name}: a bare prompt for an endpoint needs its tokenizer; give the model as "
                    "{endpoint: ..., model: ..., tokenizer: ...}",
                    "models",
                )
            return Request(problem.id, messages(problem, benchmark, self._settings.prompt), seed)
        return Request(problem.id, encode(tokenizer, problem, benchmark, self._settings.prompt), seed)

    def _known_tokenizer(self) -> Any:
        return self._engine("model").tokenizer

    def _engine(self, role: str) -> Any:
        if role not in self._engines:
            self._engines[role] = self._load(self._spec if role == "model" else self._partner, role)
        return self._engines[role]

    def _load(self, spec: ModelSpec, role: str) -> Any:
        word = self._partner_source and self._settings.handoff.by == "word"
        chosen = {key: getattr(self._settings.handoff, key) for key in WORD_KEYS}
        if spec.endpoints:
            return endpoint_engine(spec, self._settings, chosen if word else None)
        if word:
            kind = partial(TandemEngine, str(self.source), self._partner_source, self._settings.engine, **chosen)
        else:
            source = str(self.source if role == "model" else self._partner_source)
            kind = partial(VllmEngine, source, self.engine_options(role))
        if self._settings.engines == 1:
            return kind()
        return ShardedEngine(kind, str(self.source), self._settings.engine, self._settings.engines)

    def engine_options(self, role: str) -> dict[str, Any]:
        """Options of vLLM for the model or its partner: they share the device's memory when both run here."""
        alone = self._partner is None or self._partner.endpoints or self._spec.endpoints
        if alone:
            return dict(self._settings.engine)
        part = self._settings.handoff.partner_memory
        return memory_part(self._settings.engine, part if role == "partner" else 1 - part)

    def _hand_off(self, benchmark: Benchmark, problems: Sequence[Problem], on_done: OnDone) -> None:
        settings = self._settings
        sampling = self.sampling(benchmark.name)
        model, partner = self._engine("model"), self._engine("partner")
        if model.tokenizer.get_vocab() != partner.tokenizer.get_vocab():
            raise EnvironmentProblem("a handoff by token ids needs two models with the same vocabulary")
        window = min(model.model_length, partner.model_length)
        prompts = [encode(model.tokenizer, problem, benchmark, settings.prompt) for problem in problems]
        rows = [(prompt, number) for prompt in prompts for number in range(sampling.n)]
        ended = handoff.alternate(
            [prompt for prompt, _ in rows],
            lambda author, turns: self._engine(author).write_parts(turns, sampling, settings.handoff.separator),
            ("model", "partner") if settings.handoff.starts == "model" else ("partner", "model"),
            [handoff.shared_budget(sampling.max_tokens, window, len(prompt)) for prompt, _ in rows],
            [
                (problem_seed(settings.sampling["seed"], benchmark.name, problem.id) + 1_000_003 * number) & 0x7FFFFFFF
                for problem in problems
                for number in range(sampling.n)
            ],
            settings.handoff.max_rounds,
        )
        responses: dict[int, dict[int, SampledResponse]] = {}
        for row, response in ended:
            position, number = divmod(row, sampling.n)
            problem = problems[position]
            mine = responses.setdefault(position, {})
            text = _text(model.tokenizer, response.token_ids, sampling.stop)
            spans = handoff.author_spans(
                response.token_ids,
                response.authors,
                "model",
                lambda ids: model.tokenizer.decode(ids, skip_special_tokens=True),
            )
            mine[number] = SampledResponse(
                problem.id,
                number,
                text,
                len(response.token_ids),
                response.ended,
                len(prompts[position]),
                response.authors.count("model"),
                handoff.clipped(spans, len(text)),
            )
            if len(mine) == sampling.n:
                on_done(problem.id, [mine[number] for number in range(sampling.n)])

    def close(self) -> None:
        """Let the engines go, so that the next model finds the memory free."""
        for engine in self._engines.values():
            if isinstance(engine, ShardedEngine):
                engine.close()
        self._engines.clear()
        gc.collect()
