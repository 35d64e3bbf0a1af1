"""What is read with a partner beside a model's own responses: both handoffs, and legibility."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import Any

from recipes.errors import DataError, EnvironmentProblem
from recipes.evaluation.benchmark import Benchmark
from recipes.evaluation.checkpoint import WeightsReader, model_folder
from recipes.evaluation.engines import VllmEngine
from recipes.evaluation.generation import endpoint_engine, source_of
from recipes.evaluation.handoff import handoff_ratio
from recipes.evaluation.prompts import encode
from recipes.evaluation.sample_store import SampledResponse
from recipes.evaluation.settings import READINGS, ModelSpec, Settings, with_partner


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
    total, tokens = 0.0, 0
    for log_probs in responses:
        if log_probs:
            total += cross_entropy(log_probs) * len(log_probs)
            tokens += len(log_probs)
    if not tokens:
        raise ValueError("found no response with tokens; expected at least one")
    return total / tokens, tokens


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
    if len(prompt_log_probs) != len(token_ids):
        raise ValueError(
            f"found {len(prompt_log_probs)} positions for {len(token_ids)} tokens; expected as many of each"
        )
    found = []
    for position in range(max(prompt_tokens, 1), len(token_ids)):
        entry = (prompt_log_probs[position] or {}).get(token_ids[position])
        if entry is None:
            raise ValueError(f"position {position} has no log-probability for its own token {token_ids[position]}")
        found.append(float(getattr(entry, "logprob", entry)))
    return found


Samples = Mapping[str, Sequence[SampledResponse]]


def variants(spec: ModelSpec, settings: Settings) -> list[tuple[str, Settings]]:
    """The names and settings under which a model is evaluated: alone, and in each handoff with the partner.

    A model that is the partner itself has no handoff, which would be itself alone.
    """
    if settings.readings is None:
        return [(f"{spec.name}+handoff" if settings.partner else spec.name, settings)]
    found = [(spec.name, settings)]
    place = ("path", "endpoints", "author")
    if any(getattr(spec, key) != getattr(settings.readings.model, key) for key in place):
        handoffs = [(name, by) for name in settings.readings.readings if (by := READINGS[name])]
        found += [(f"{spec.name}+{name}", with_partner(settings, by)) for name, by in handoffs]
    return found


def add_ratios(settings: Settings, summary: dict[str, Any]) -> None:
    """Give every handoff what it keeps of the solo accuracy and what it loses, for each benchmark and macro average.

    `handoff_ratio` is joint / solo, None where solo is 0; `handoff_gap` solo - joint.
    """
    if settings.readings is None:
        return
    for spec in settings.models:
        for name in settings.readings.readings:
            for part in ("models", "macros"):
                found = summary[part].get(f"{spec.name}+{name}", {})
                for key, result in found.items():
                    _compare(result, summary[part][spec.name][key])


def _compare(joint: dict[str, Any], solo: Mapping[str, Any]) -> None:
    shared = [
        (metric, value["mean"], solo["metrics"][metric]["mean"])
        for metric, value in joint.get("metrics", {}).items()
        if metric.startswith("pass@") and metric in solo.get("metrics", {})
    ]
    joint["handoff_ratio"] = {metric: handoff_ratio(together, alone) for metric, together, alone in shared}
    joint["handoff_gap"] = {metric: alone - together for metric, together, alone in shared}


class Partner:
    """A partner that reads texts; its engine is loaded when first needed."""

    def __init__(self, spec: ModelSpec, settings: Settings):
        """Resolve the model, which may export a verl checkpoint.

        Raises:
            LaunchError: no such model.
        """
        self._spec, self._settings = spec, settings
        self.source = source_of(spec, settings.output_dir / "merged")

    @cached_property
    def engine(self) -> Any:
        """What writes."""
        if self._spec.endpoints:
            return endpoint_engine(self._spec, self._settings)
        return VllmEngine(self.source, self._settings.engine)

    @cached_property
    def reader(self) -> Any:
        """What tells log-probabilities of given texts."""
        if self._spec.weights is None:
            return self.engine
        return WeightsReader(model_folder(self._spec.weights, self._settings.output_dir / "merged"))

    def legibility(self, samples: Samples, benchmark: Benchmark) -> dict[str, Any]:
        """Cross-entropy of the partner on a model's responses to a benchmark.

        The partner reads prompt and response with its own tokenizer and template. `nats_per_token` is left out where
        no response can be read.
        """
        reader = self.reader
        problems = {problem.id: problem for problem in benchmark.problems}
        responses = sorted((one for found in samples.values() for one in found), key=lambda one: one.sample)
        rows = []
        for response in responses[: self._settings.legibility_responses]:
            prompt = encode(reader.tokenizer, problems[response.problem], benchmark, self._settings.prompt)
            ids = reader.tokenizer.encode(response.response, add_special_tokens=False)
            rows.append((len(prompt), [*prompt, *ids]))
        # What does not fit into the partner's window cannot be read by it; the number of those is reported.
        window = reader.model_length
        fitting = [(size, ids) for size, ids in rows if size < len(ids) < window]
        found: dict[str, Any] = {"tokens": 0, "responses_left_out": len(rows) - len(fitting)}
        if fitting:
            answers = reader.prompt_log_probs([ids for _, ids in fitting])
            mean, tokens = mean_cross_entropy(
                response_log_probs(answer, ids, size) for answer, (size, ids) in zip(answers, fitting, strict=True)
            )
            found |= {"nats_per_token": mean, "tokens": tokens}
        return found


def add_readings(
    settings: Settings,
    benchmarks: Sequence[Benchmark],
    written: Mapping[str, Mapping[str, Samples]],
    summary: dict[str, Any],
) -> None:
    """Add legibility, where it is asked for, to the results.

    Args:
        written: model -> benchmark -> its responses.

    Raises:
        LaunchError: with the name of the reading that failed.
    """
    if settings.readings is not None:
        spec, wanted = settings.readings.model, settings.readings.readings
        written = {model.name: written[model.name] for model in settings.models if model.name in written}
    else:
        spec, wanted = settings.legibility, ("legibility",)
    if spec is None or "legibility" not in wanted:
        return
    partner = Partner(spec, settings)
    by_name = {benchmark.name: benchmark for benchmark in benchmarks}
    for model, results in written.items():
        for name, samples in results.items():
            try:
                found = summary["models"][model][name]["legibility"] = partner.legibility(samples, by_name[name])
            except (EnvironmentProblem, DataError) as error:
                raise type(error)(f"legibility of {model} on {name}: {error}") from error
            if "nats_per_token" not in found:
                left_out = found["responses_left_out"]
                print(f"legibility of {model} on {name} has no value: {left_out} responses are too long")


def add_macros(summary: dict[str, Any]) -> None:
    """Give every macro average the legibility of its benchmarks, weighed by tokens; one that lacks a value has none."""
    for model, macros in summary["macros"].items():
        results = summary["models"][model]
        for macro in macros.values():
            if "metrics" not in macro:
                continue
            parts = [[results[name].get("legibility", {}) for name in part] for part in macro["parts"]]
            if all("nats_per_token" in found for part in parts for found in part):
                means = [
                    sum(found["nats_per_token"] * found["tokens"] for found in part)
                    / sum(found["tokens"] for found in part)
                    for part in parts
                ]
                macro["legibility"] = {"nats_per_token": sum(means) / len(means)}
