"""What is read with a partner beside a model's own responses: both handoffs, legibility, and transfer utility."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from recipes.common import files
from recipes.common.sampling import Sampling
from recipes.errors import DataError, EnvironmentProblem
from recipes.evaluation import legibility, transfer_utility
from recipes.evaluation.benchmark import Benchmark
from recipes.evaluation.checkpoint import model_folder
from recipes.evaluation.continuations import Continuations, right_traces
from recipes.evaluation.denominators import UNPARSABLE
from recipes.evaluation.generation import endpoint_engine, source_of
from recipes.evaluation.grading import Grade
from recipes.evaluation.handoff import handoff_ratio
from recipes.evaluation.prompts import encode
from recipes.evaluation.sample_store import SampledResponse
from recipes.evaluation.settings import READINGS, ModelSpec, Settings, with_partner
from recipes.evaluation.vllm_engine import VllmEngine
from recipes.evaluation.weights_reader import WeightsReader

Samples = Mapping[str, Sequence[SampledResponse]]
Judge = Callable[[Benchmark, Samples], dict[str, list[Grade]]]


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
    """A partner that reads texts and goes on from them; its engine is loaded when first needed."""

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
            mean, tokens = legibility.mean_cross_entropy(
                legibility.response_log_probs(answer, ids, size)
                for answer, (size, ids) in zip(answers, fitting, strict=True)
            )
            found |= {"nats_per_token": mean, "tokens": tokens}
        return found

    def transfer(
        self,
        name: str,
        benchmark: Benchmark,
        samples: Samples,
        graded: Mapping[str, Sequence[Grade]],
        sampling: Sampling,
        judge: Judge,
    ) -> dict[str, Any]:
        """Transfer utility of a model's right responses to a benchmark, with each response's curve in a file.

        Returns:
            What `transfer_utility.summarise` gives, and `left_out`: responses too long for the partner's window.

        Raises:
            LaunchError: an engine that fails, or continuations of other settings in the output folder.
        """
        options, folder = self._settings.transfer, self._settings.output_dir / name
        traces = right_traces(samples, graded, options.traces)
        if not traces:
            return transfer_utility.summarise([]) | {"left_out": 0}
        runs = Continuations(self.engine, self.source, self._settings, benchmark, traces, sampling)
        if not runs.traces:
            return transfer_utility.summarise([]) | {"left_out": len(traces)}
        written = runs.write(folder / f"{benchmark.name}.transfer_written.jsonl")
        judged = judge(benchmark, written)
        if runs.forcing:
            without = {
                (problem, row)
                for problem, grades in judged.items()
                for row, grade in enumerate(grades)
                if grade.reason.partition(":")[0] in UNPARSABLE
            }
            written = runs.force(folder / f"{benchmark.name}.transfer_forced.jsonl", written, without)
            judged = judge(benchmark, written)
        rows = []
        for problem, trace in runs.traces.items():
            if any(grade.status != "score" for grade in judged[problem]):
                continue
            given = transfer_utility.percents(trace.cuts, len(trace.sentences))
            right = [float(grade.right) for grade in judged[problem]]
            rows.append({"problem": problem, "cuts": trace.cuts, "percents": given, "right": right})
        files.write_json_lines(folder / f"{benchmark.name}.transfer.jsonl", rows)
        found = transfer_utility.summarise([(row["percents"], row["right"]) for row in rows])
        return found | {"left_out": len(traces) - len(rows)}


def add_readings(
    settings: Settings,
    benchmarks: Sequence[Benchmark],
    written: Mapping[str, Mapping[str, tuple[Samples, Mapping[str, Sequence[Grade]]]]],
    cards: Mapping[str, Mapping[str, Any]],
    summary: dict[str, Any],
    judge: Judge,
) -> None:
    """Add legibility and transfer utility, where they are asked for, to the results.

    Args:
        written: model -> benchmark -> its responses and their grades.
        cards: model -> `sampling` -> benchmark: how they were sampled.

    Raises:
        LaunchError: with the name of the reading that failed.
    """
    if settings.readings is not None:
        spec, wanted = settings.readings.model, settings.readings.readings
        written = {model.name: written[model.name] for model in settings.models if model.name in written}
    else:
        spec, wanted = settings.legibility, ("legibility",)
    if spec is None or not {"legibility", "transfer_utility"} & set(wanted):
        return
    partner = Partner(spec, settings)
    by_name = {benchmark.name: benchmark for benchmark in benchmarks}
    for model, results in written.items():
        for name, (samples, graded) in results.items():
            reading = ""
            try:
                if "legibility" in wanted:
                    reading = "legibility"
                    summary["models"][model][name][reading] = partner.legibility(samples, by_name[name])
                if "transfer_utility" in wanted:
                    reading = "transfer_utility"
                    sampling = Sampling(**cards[model]["sampling"][name])
                    found = partner.transfer(model, by_name[name], samples, graded, sampling, judge)
                    summary["models"][model][name][reading] = found
            except (EnvironmentProblem, DataError) as error:
                raise type(error)(f"{reading} of {model} on {name}: {error}") from error
            _say_what_is_missing(model, name, summary["models"][model][name])


def _say_what_is_missing(model: str, benchmark: str, result: Mapping[str, Any]) -> None:
    for reading, number, left_out in (
        ("legibility", "nats_per_token", "responses_left_out"),
        ("transfer_utility", "first_order", "left_out"),
    ):
        if reading in result and number not in result[reading]:
            count = result[reading][left_out]
            why = f"{count} responses are too long or could not be judged" if count else "no right response is finished"
            print(f"{reading} of {model} on {benchmark} has no value: {why}")


# reading -> number -> what weighs a benchmark among those that a macro average pools
_WEIGHTS = {
    "legibility": {"nats_per_token": "tokens"},
    "transfer_utility": {"first_order": "traces", "alone": "traces"},
}


def add_macros(summary: dict[str, Any]) -> None:
    """Give every macro average the readings of its benchmarks; one that lacks a value has none."""
    for model, macros in summary["macros"].items():
        results = summary["models"][model]
        for macro in macros.values():
            if "metrics" not in macro:
                continue
            for reading, numbers in _WEIGHTS.items():
                for number, weight in numbers.items():
                    parts = [[results[name].get(reading, {}) for name in part] for part in macro["parts"]]
                    if all(number in found for part in parts for found in part):
                        means = [
                            sum(found[number] * found[weight] for found in part) / sum(found[weight] for found in part)
                            for part in parts
                        ]
                        macro.setdefault(reading, {})[number] = sum(means) / len(means)
