"""What is read with a partner beside a model's own responses: both handoffs, and legibility."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import Any

from recipes.errors import DataError, EnvironmentProblem
from recipes.evaluation.benchmarks import Benchmark
from recipes.evaluation.checkpoint import WeightsReader, model_folder
from recipes.evaluation.engines import VllmEngine, handoff_ratio
from recipes.evaluation.generate import Together, endpoint_engine, source_of
from recipes.evaluation.prompts import encode
from recipes.evaluation.sample_store import Samples
from recipes.evaluation.settings import ModelSpec, Settings

HANDOFFS: tuple[Together, ...] = ("sentence_handoff", "word_handoff")


def cross_entropy(log_probs: Sequence[float]) -> float:
    """Mean negative log-probability, in nats per token, that the partner gives to the response's tokens.

    Raises:
        ValueError: no tokens, or a log-probability that is positive or not finite.
    """
    if not log_probs:
        raise ValueError("found a response without tokens; expected at least one")
    faulty = [value for value in log_probs if not isfinite(value) or value > 1e-6]
    if faulty:
        raise ValueError(f"found {len(faulty)} values that are no log-probabilities, such as {faulty[0]}")
    return -sum(log_probs) / len(log_probs)


def mean_cross_entropy(responses: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Cross-entropy over all tokens of all responses, in nats per token, and the number of tokens.

    Every token weighs the same, so long responses weigh more; empty responses have no token and no weight.

    Raises:
        ValueError: no token at all, or a value that is no log-probability.
    """
    log_probs = [value for response in responses for value in response]
    return cross_entropy(log_probs), len(log_probs)


def response_log_probs(prompt_log_probs: Sequence[object], token_ids: Sequence[int], prompt_tokens: int) -> list[float]:
    """Log-probabilities of the response's tokens, from an engine's per-position answer for prompt and response
    together.

    Args:
        prompt_log_probs: one entry per position: None for the first, else a mapping from token id to a
            log-probability or to an object with `.logprob`, as vLLM answers `prompt_logprobs`.
        token_ids: ids of prompt and response together.
        prompt_tokens: how many of them belong to the prompt.

    Raises:
        ValueError: lengths that differ, or a position without its own token's log-probability.
    """
    positions = list(zip(prompt_log_probs, token_ids, strict=True))
    values = []
    for position in range(max(prompt_tokens, 1), len(positions)):
        entries, token = positions[position]
        entry = (entries or {}).get(token)
        if entry is None:
            raise ValueError(f"position {position} has no log-probability for its own token {token}")
        values.append(float(getattr(entry, "logprob", entry)))
    return values


def variants(spec: ModelSpec, settings: Settings) -> list[tuple[str, Together | None]]:
    """The names under which a model is evaluated, alone and in each handoff with the partner.

    A model that is the partner itself has no handoff, which would be itself alone.
    """
    partner = settings.partner.model
    place = ("path", "endpoints", "author")
    if partner is None or all(getattr(spec, key) == getattr(partner, key) for key in place):
        return [(spec.name, None)]
    handoffs = [reading for reading in HANDOFFS if settings.partner.reads(reading)]
    return [(spec.name, None), *((f"{spec.name}+{reading}", reading) for reading in handoffs)]


def add_ratios(settings: Settings, summary: dict[str, Any]) -> None:
    """Give every handoff what it keeps of the solo accuracy and what it loses, for each benchmark and macro average.

    `handoff_ratio` is joint / solo, None where solo is 0; `handoff_gap` solo - joint.
    """
    for spec in settings.models:
        for reading in HANDOFFS:
            for part in ("models", "macros"):
                for name, joint in summary[part].get(f"{spec.name}+{reading}", {}).items():
                    solo = summary[part][spec.name][name].get("metrics", {})
                    means = {
                        metric: (interval["mean"], solo[metric]["mean"])
                        for metric, interval in joint.get("metrics", {}).items()
                        if metric.startswith("pass@") and metric in solo
                    }
                    joint["handoff_ratio"] = {metric: handoff_ratio(*pair) for metric, pair in means.items()}
                    joint["handoff_gap"] = {metric: alone - both for metric, (both, alone) in means.items()}


class Reader:
    """A partner that reads texts; its engine is loaded when first needed.

    Raises:
        LaunchError: no such model.
    """

    def __init__(self, spec: ModelSpec, settings: Settings):
        self._spec, self._settings = spec, settings
        self.source = source_of(spec, settings)

    @cached_property
    def engine(self) -> Any:
        """What tells log-probabilities of given texts."""
        if self._spec.weights is not None:
            return WeightsReader(model_folder(self._spec.weights, self._settings.output_dir / "merged"))
        if self._spec.endpoints:
            return endpoint_engine(self._spec, self._settings)
        return VllmEngine(self.source, self._settings.engine_options)

    def legibility(self, samples: Samples, benchmark: Benchmark) -> dict[str, Any]:
        """Cross-entropy of the partner on a model's responses to a benchmark.

        The partner reads prompt and response with its own tokenizer and template. `nats_per_token` is left out where
        no response can be read.
        """
        engine, tokenizer = self.engine, self.engine.tokenizer
        problems = {problem.id: problem for problem in benchmark.problems}
        responses = sorted((one for of_problem in samples.values() for one in of_problem), key=lambda one: one.sample)
        texts = []
        for response in responses[: self._settings.partner.legibility_responses]:
            prompt = encode(tokenizer, problems[response.problem], benchmark, self._settings.prompt)
            texts.append((len(prompt), [*prompt, *tokenizer.encode(response.response, add_special_tokens=False)]))
        # What does not fit into the partner's window cannot be read by it; the number of those is reported.
        fitting = [(size, ids) for size, ids in texts if size < len(ids) < engine.model_length]
        result: dict[str, Any] = {"tokens": 0, "responses_left_out": len(texts) - len(fitting)}
        if fitting:
            answers = engine.prompt_log_probs([ids for _, ids in fitting])
            result["nats_per_token"], result["tokens"] = mean_cross_entropy(
                response_log_probs(answer, ids, size) for answer, (size, ids) in zip(answers, fitting, strict=True)
            )
        return result


def add_legibility(
    settings: Settings,
    benchmarks: Sequence[Benchmark],
    responses: Mapping[str, Mapping[str, Samples]],
    summary: dict[str, Any],
) -> None:
    """Add legibility, where it is asked for, to the results of each model alone.

    Args:
        responses: model -> benchmark -> its responses.

    Raises:
        LaunchError: with the name of the reading that failed.
    """
    if not settings.partner.reads("legibility"):
        return
    reader = Reader(settings.partner.model, settings)
    by_name = {benchmark.name: benchmark for benchmark in benchmarks}
    for model in [spec.name for spec in settings.models if spec.name in responses]:
        for name, samples in responses[model].items():
            try:
                result = summary["models"][model][name]["legibility"] = reader.legibility(samples, by_name[name])
            except (EnvironmentProblem, DataError) as error:
                raise type(error)(f"legibility of {model} on {name}: {error}") from error
            if "nats_per_token" not in result:
                left_out = result["responses_left_out"]
                print(f"legibility of {model} on {name} has no value: {left_out} responses are too long")


def add_macros(summary: dict[str, Any]) -> None:
    """Give every macro average the legibility of its benchmarks, weighed by tokens; one that lacks a value has none."""
    for model, macros in summary["macros"].items():
        results = summary["models"][model]
        for macro in macros.values():
            if "metrics" not in macro:
                continue
            parts = [[results[name].get("legibility", {}) for name in part] for part in macro["parts"]]
            if all("nats_per_token" in reading for part in parts for reading in part):
                means = [
                    sum(one["nats_per_token"] * one["tokens"] for one in part) / sum(one["tokens"] for one in part)
                    for part in parts
                ]
                macro["legibility"] = {"nats_per_token": sum(means) / len(means)}
