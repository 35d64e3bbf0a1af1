"""Evaluate models on benchmarks.

    python -m recipes.evaluation.main models=[PATH] benchmarks=[math_500] sampling.n=16 sampling.temperature=0.7
    k=[1,4,16]

Arguments are Hydra overrides of config/evaluation.yaml. The output folder gets responses as they are finished, graded
samples, summary.json, tables, plots and run_card.json; the same command again continues a killed run.
"""

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recipes.core import files
from recipes.errors import ConfigError, DataError, EnvironmentProblem, LaunchError
from recipes.evaluation import handoff, partner_readings, presentation
from recipes.evaluation.benchmark import Benchmark, load
from recipes.evaluation.generation import Generator
from recipes.evaluation.grading import Grade, RunningGrader, grade
from recipes.evaluation.metrics import per_problem, summarise
from recipes.evaluation.prompts import OWN_SHOTS
from recipes.evaluation.run_card import run_card
from recipes.evaluation.sample_store import SampledResponse, read_samples
from recipes.evaluation.settings import Settings, read_settings
from recipes.evaluation.stats import compare, macro_results
from reward_fns.errors import RewardError

Scores = dict[str, dict[str, float]]


def evaluate(settings: Settings) -> dict[str, Any]:
    """Run an evaluation and write everything it gives; returns the summary.

    Raises:
        LaunchError: bad input, a fault of an engine, or data that does not fit.
    """
    benchmarks = load_benchmarks(settings)
    try:
        settings.output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir: {settings.output_dir} cannot be made: {error}", "output_dir") from error
    summary: dict[str, Any] = {"models": {}, "comparisons": []}
    scores: dict[str, dict[str, Scores]] = {}
    written: dict[str, dict[str, Any]] = {}
    cards: dict[str, Any] = {}
    for name, responses in _responses(settings, benchmarks, cards):
        for benchmark, samples, graded in responses:
            if graded is None:
                print(f"{benchmark.name} has no labels: the responses of {name} are stored and not graded")
                continue
            _write_samples(settings.output_dir / name / f"{benchmark.name}.samples.jsonl", benchmark, samples, graded)
            try:
                result = summarise(graded, samples, settings.metrics)
            except ValueError as error:
                raise DataError(f"{name} on {benchmark.name}: {error}") from error
            result["groups"] = _by_group(benchmark, per_problem(graded, settings.metrics)[0])
            summary["models"].setdefault(name, {})[benchmark.name] = result
            written.setdefault(name, {})[benchmark.name] = samples
            scores.setdefault(name, {})[benchmark.name] = per_problem(graded, settings.metrics)[0]
    if settings.partner and settings.handoff.solo:
        _add_ratios(settings, summary)
    partner_readings.add_readings(settings, benchmarks, written, summary)
    summary["macros"] = {
        name: macro_results(settings.macro, found, level=settings.metrics.level, seed=settings.metrics.seed)
        for name, found in scores.items()
    }
    _add_truncated(summary)
    partner_readings.add_macros(summary)
    partner_readings.add_ratios(settings, summary)
    summary["comparisons"] = _comparisons(settings, scores)
    sources = {
        benchmark.name: {
            "source": dict(benchmark.source),
            "problems": len(benchmark.problems),
            "fingerprint": benchmark.fingerprint,
        }
        for benchmark in benchmarks
    }
    files.write_json(settings.output_dir / "summary.json", summary)
    files.write_json(settings.output_dir / "run_card.json", run_card(settings.config, sources, cards))
    files.write(settings.output_dir / "summary.md", presentation.markdown(summary))
    presentation.plot_pass_at_k(summary, settings.output_dir / "pass_at_k.png")
    return summary


def load_benchmarks(settings: Settings) -> list[Benchmark]:
    """The benchmarks of an evaluation.

    Raises:
        LaunchError: an unknown benchmark, or data that is missing or does not fit.
    """
    return [
        load(
            name,
            settings.data.get(Path(name).stem),
            settings.limit,
            with_shots=settings.prompt.few_shot == OWN_SHOTS,
            shots_path=settings.data.get(f"{Path(name).stem}_shots"),
            data_dir=settings.data_dir,
        )
        for name in settings.benchmarks
    ]


def _responses(settings: Settings, benchmarks: Sequence[Benchmark], cards: dict[str, Any]):
    """For every model its name and, benchmark by benchmark, its samples and their grades (None without labels).

    Models are loaded one at a time.
    """
    if settings.score_only is not None:
        if not settings.score_only.is_file():
            raise DataError(f"score_only: no file {settings.score_only}")
        cards[settings.score_only.stem] = {"score_only": str(settings.score_only)}
        samples = _saved(settings.score_only, benchmarks[0])
        graded = _grade(settings, benchmarks[0], samples) if benchmarks[0].labelled else None
        yield settings.score_only.stem, [(benchmarks[0], samples, graded)]
        return
    chosen = [(spec, *found) for spec in settings.models for found in partner_readings.variants(spec, settings)]
    for number, (spec, name, own) in enumerate(chosen, 1):
        generator = Generator(spec, own)
        cards[name] = asdict(spec) | {
            "loaded": generator.source,
            "sampling": {benchmark.name: asdict(generator.sampling(benchmark.name)) for benchmark in benchmarks},
        }
        try:
            yield name, [(benchmark, *_graded(own, benchmark, generator, name)) for benchmark in benchmarks]
        except EnvironmentProblem as error:
            raise EnvironmentProblem(f"{name}: {error}") from error
        finally:
            # Freeing an engine takes a while: done where another one follows.
            if number < len(chosen) or settings.legibility or settings.readings:
                generator.close()


def _graded(settings: Settings, benchmark: Benchmark, generator: Generator, name: str):
    """The responses of a model to a benchmark and their grades, made while the engine still writes."""
    if not benchmark.labelled:
        return generator.samples(benchmark, name), None
    grader = RunningGrader(lambda samples: _grade(settings, benchmark, samples))
    try:
        samples = generator.samples(benchmark, name, grader.add)
        return samples, grader.grades(samples)
    finally:
        grader.close()


def _saved(path: Path, benchmark: Benchmark) -> dict[str, list[SampledResponse]]:
    """Saved responses by problem."""
    found: dict[str, dict[int, SampledResponse]] = {}
    for sample in read_samples(path)[1]:
        found.setdefault(sample.problem, {})[sample.sample] = sample
    known = {problem.id for problem in benchmark.problems}
    if not found or not found.keys() <= known:
        raise DataError(
            f"{path} holds {len(found.keys() - known)} problems that {benchmark.name} does not have, of {len(found)}"
        )
    return {problem: [samples[index] for index in sorted(samples)] for problem, samples in found.items()}


def _grade(
    settings: Settings, benchmark: Benchmark, samples: Mapping[str, Sequence[SampledResponse]]
) -> dict[str, list[Grade]]:
    chosen = {key: value for key, value in settings.grading[benchmark.kind].items() if value is not None}
    golds = {problem.id: problem.gold for problem in benchmark.problems}
    try:
        return grade(
            benchmark.kind,
            samples,
            golds,
            {**benchmark.grading, **chosen},
            classes=any(k > 1 for k in settings.metrics.k),
            choices={problem.id: len(problem.options) for problem in benchmark.problems},
        )
    except RewardError as error:
        raise DataError(f"grading {benchmark.name}: {error}") from error


def _write_samples(path: Path, benchmark: Benchmark, samples, graded: Mapping[str, Sequence[Grade]]) -> None:
    asked = {problem.id: {"question": problem.question, "gold": str(problem.gold)} for problem in benchmark.problems}
    files.write_json_lines(
        path,
        (
            asdict(sample) | asked[problem] | asdict(judged)
            for problem, found in samples.items()
            for sample, judged in zip(found, graded[problem], strict=True)
        ),
    )


def _add_truncated(summary: dict[str, Any]) -> None:
    """Give every macro average the share of truncated responses, with its own weights."""
    for model, macros in summary["macros"].items():
        results = summary["models"][model]
        for found in macros.values():
            if "metrics" in found:
                pooled = [
                    sum(results[name]["truncated"] * results[name]["problems"] for name in part)
                    / sum(results[name]["problems"] for name in part)
                    for part in found["parts"]
                ]
                found["truncated"] = sum(pooled) / len(pooled)


def _add_ratios(settings: Settings, summary: dict[str, Any]) -> None:
    folder = Path(settings.handoff.solo)
    try:
        solo = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        made_with = json.loads((folder / "run_card.json").read_text(encoding="utf-8"))["config"]["sampling"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"handoff.solo: {folder} is no output folder of an evaluation: {error}") from error
    if made_with != settings.config["sampling"]:
        raise DataError(
            f"handoff.solo: {folder} was sampled with {made_with}, this handoff with {settings.config['sampling']}; "
            "a ratio needs equal settings"
        )
    for spec in settings.models:
        for benchmark, result in summary["models"].get(f"{spec.name}+handoff", {}).items():
            alone = solo["models"].get(spec.name, {}).get(benchmark)
            if alone is None:
                raise DataError(f"handoff.solo: {folder} has no result of {spec.name} on {benchmark}")
            result["handoff_ratio"] = handoff.ratios(result, alone)


def _by_group(benchmark: Benchmark, scores: Scores) -> dict[str, dict[str, float]]:
    """Mean of every metric by subject or level, with the number of problems."""
    groups: dict[str, list[str]] = {}
    for problem in benchmark.problems:
        if problem.group:
            groups.setdefault(problem.group, []).append(problem.id)
    result: dict[str, dict[str, float]] = {}
    for group, members in sorted(groups.items()):
        counted = [problem for problem in members if all(problem in found for found in scores.values())]
        if counted:
            result[group] = {"problems": len(counted)} | {
                metric: sum(found[problem] for problem in counted) / len(counted) for metric, found in scores.items()
            }
    return result


def _comparisons(settings: Settings, scores: Mapping[str, Mapping[str, Scores]]) -> list[dict[str, Any]]:
    rows = []
    for first, second in itertools.combinations(scores, 2):
        if settings.readings and presentation.reading_of(first) != presentation.reading_of(second):
            continue
        for benchmark, metrics in scores[first].items():
            for metric, values in metrics.items():
                other = scores[second][benchmark].get(metric, {})
                # Under the rule "parsable" the models may count different problems; only the shared ones are paired.
                shared = values.keys() & other.keys()
                if not shared:
                    continue
                found = compare(
                    {problem: values[problem] for problem in shared},
                    {problem: other[problem] for problem in shared},
                    level=settings.metrics.level,
                    seed=settings.metrics.seed,
                )
                row = asdict(found) | {"difference": found.difference._asdict()}
                rows.append({"first": first, "second": second, "benchmark": benchmark, "metric": metric} | row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(given):
        print(__doc__)
        return 0
    try:
        settings = read_settings(given)
        summary = evaluate(settings)
    except LaunchError as error:
        print(f"evaluation: {error}", file=sys.stderr)
        return 2
    print(presentation.markdown(summary))
    print(f"wrote {settings.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
