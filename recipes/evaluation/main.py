"""Evaluate models on benchmarks.

    python -m recipes.evaluation.main models=[PATH] benchmarks=[math_500] sampling.n=16 sampling.temperature=0.7
    k=[1,4,16]

Arguments are Hydra overrides of config/evaluation.yaml. The output folder gets responses as they are finished, graded
samples, summary.json, tables, plots and run_card.json; the same command again continues a killed run.
"""

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recipes.core import files
from recipes.errors import ConfigError, DataError, EnvironmentProblem, LaunchError
from recipes.evaluation import partner, presentation
from recipes.evaluation.benchmarks import Benchmark, load
from recipes.evaluation.generate import Generator
from recipes.evaluation.grade import Grade, grade, per_problem, summarise
from recipes.evaluation.prompts import OWN_SHOTS
from recipes.evaluation.sample_store import SampledResponse, Samples, by_problem, read_samples
from recipes.evaluation.settings import Settings, read_settings
from recipes.evaluation.stats import compare, macro_results
from reward_fns.errors import RewardError

# Metric -> problem -> score.
Scores = dict[str, dict[str, float]]
Graded = dict[str, list[Grade]]


def evaluate(settings: Settings) -> dict[str, Any]:
    """Run an evaluation and write everything it gives; returns the summary.

    Raises:
        LaunchError: bad input, a fault of an engine, or data that does not fit.
    """
    benchmarks = load_benchmarks(settings)
    folder, options = settings.output_dir, settings.metric_options
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir: {folder} cannot be made: {error}", "output_dir") from error
    summary: dict[str, Any] = {"models": {}, "comparisons": []}
    scores: dict[str, dict[str, Scores]] = {}
    responses: dict[str, dict[str, Samples]] = {}
    cards: dict[str, Any] = {}
    for name, benchmark, samples, graded in _graded_responses(settings, benchmarks, cards):
        if graded is None:
            print(f"{benchmark.name} has no labels: the responses of {name} are stored and not graded")
            continue
        _write_samples(folder / name / f"{benchmark.name}.samples.jsonl", benchmark, samples, graded)
        try:
            result = summarise(graded, samples, options)
        except ValueError as error:
            raise DataError(f"{name} on {benchmark.name}: {error}") from error
        of_problems = per_problem(graded, options)[0]
        result["groups"] = _by_group(benchmark, of_problems)
        summary["models"].setdefault(name, {})[benchmark.name] = result
        responses.setdefault(name, {})[benchmark.name] = samples
        scores.setdefault(name, {})[benchmark.name] = of_problems
    partner.add_legibility(settings, benchmarks, responses, summary)
    summary["macros"] = {
        name: macro_results(settings.macros, of_benchmarks, level=options.level, seed=options.seed)
        for name, of_benchmarks in scores.items()
    }
    _add_truncated(summary)
    partner.add_macros(summary)
    partner.add_ratios(settings, summary)
    summary["comparisons"] = _comparisons(settings, scores)
    files.write_json(folder / "summary.json", summary)
    files.write_json(folder / "run_card.json", presentation.run_card(settings, benchmarks, cards))
    files.write(folder / "summary.md", presentation.markdown(summary))
    presentation.plot_pass_at_k(summary, folder / "pass_at_k.png")
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


def _graded_responses(
    settings: Settings, benchmarks: Sequence[Benchmark], cards: dict[str, Any]
) -> Iterator[tuple[str, Benchmark, Samples, Graded | None]]:
    """For every model and benchmark its name, the samples and their grades (None without labels).

    Models are loaded one at a time, when they are reached.
    """
    if settings.score_only is not None:
        name, (benchmark,) = settings.score_only.stem, benchmarks
        cards[name] = {"score_only": str(settings.score_only)}
        samples = _saved(settings.score_only, benchmark)
        yield name, benchmark, samples, _grade(settings, benchmark, samples)
        return
    chosen = [(spec, *variant) for spec in settings.models for variant in partner.variants(spec, settings)]
    for number, (spec, name, together) in enumerate(chosen, 1):
        generator = Generator(spec, settings, together)
        cards[name] = asdict(spec) | {
            "loaded": generator.source,
            "sampling": {benchmark.name: asdict(generator.sampling(benchmark.name)) for benchmark in benchmarks},
        }
        try:
            for benchmark in benchmarks:
                samples = generator.samples(benchmark, name)
                yield name, benchmark, samples, _grade(settings, benchmark, samples)
        except EnvironmentProblem as error:
            raise EnvironmentProblem(f"{name}: {error}") from error
        finally:
            # Freeing an engine takes a while: done where another one follows.
            if number < len(chosen) or settings.partner.reads("legibility"):
                generator.close()


def _saved(path: Path, benchmark: Benchmark) -> dict[str, list[SampledResponse]]:
    """Saved responses by problem."""
    if not path.is_file():
        raise DataError(f"score_only: no file {path}")
    grouped = by_problem(read_samples(path)[1])
    others = grouped.keys() - {problem.id for problem in benchmark.problems}
    if not grouped or others:
        raise DataError(f"{path} holds {len(others)} problems that {benchmark.name} does not have, of {len(grouped)}")
    return {problem: [samples[index] for index in sorted(samples)] for problem, samples in grouped.items()}


def _grade(settings: Settings, benchmark: Benchmark, samples: Samples) -> Graded | None:
    if not benchmark.labelled:
        return None
    try:
        return grade(
            benchmark.kind,
            samples,
            {problem.id: problem.gold for problem in benchmark.problems},
            {**benchmark.grading, **settings.grading_of(benchmark.kind)},
            classes=max(settings.k) > 1,
            choices={problem.id: len(problem.options) for problem in benchmark.problems},
        )
    except RewardError as error:
        raise DataError(f"grading {benchmark.name}: {error}") from error


def _write_samples(path: Path, benchmark: Benchmark, samples: Samples, graded: Graded) -> None:
    problems = {problem.id: {"question": problem.question, "gold": str(problem.gold)} for problem in benchmark.problems}
    rows = (
        asdict(sample) | problems[problem] | asdict(judged)
        for problem, of_problem in samples.items()
        for sample, judged in zip(of_problem, graded[problem], strict=True)
    )
    files.write_json_lines(path, rows)


def _add_truncated(summary: dict[str, Any]) -> None:
    """Give every macro average the share of truncated responses, with its own weights."""
    for model, macros in summary["macros"].items():
        results = summary["models"][model]
        for macro in macros.values():
            if "metrics" in macro:
                parts = [[results[name] for name in part] for part in macro["parts"]]
                shares = [
                    sum(one["truncated"] * one["problems"] for one in part) / sum(one["problems"] for one in part)
                    for part in parts
                ]
                macro["truncated"] = sum(shares) / len(shares)


def _by_group(benchmark: Benchmark, scores: Scores) -> dict[str, dict[str, float]]:
    """Mean of every metric by subject or level, with the number of problems."""
    groups: dict[str, list[str]] = {}
    for problem in benchmark.problems:
        if problem.group and all(problem.id in values for values in scores.values()):
            groups.setdefault(problem.group, []).append(problem.id)
    return {
        group: {"problems": len(members)}
        | {metric: sum(values[name] for name in members) / len(members) for metric, values in scores.items()}
        for group, members in sorted(groups.items())
    }


def _comparisons(settings: Settings, scores: Mapping[str, Mapping[str, Scores]]) -> list[dict[str, Any]]:
    options, rows = settings.metric_options, []
    for first, second in itertools.combinations(scores, 2):
        if presentation.handoff_of(first) != presentation.handoff_of(second):
            continue
        for benchmark, metrics in scores[first].items():
            for metric, ours in metrics.items():
                theirs = scores[second][benchmark].get(metric, {})
                # Under the rule "parsable" the models may count different problems; only the shared ones are paired.
                shared = ours.keys() & theirs.keys()
                if shared:
                    pair = ({problem: side[problem] for problem in shared} for side in (ours, theirs))
                    result = compare(*pair, level=options.level, seed=options.seed)
                    names = {"first": first, "second": second, "benchmark": benchmark, "metric": metric}
                    rows.append(names | asdict(result) | {"difference": result.difference._asdict()})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        settings = read_settings(arguments)
        summary = evaluate(settings)
    except LaunchError as error:
        print(f"evaluation: {error}", file=sys.stderr)
        return 2
    print(presentation.markdown(summary))
    print(f"wrote {settings.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
