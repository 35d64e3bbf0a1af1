"""Tables and plots of a summary."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recipes.evaluation.settings import READINGS

Summary = Mapping[str, Any]


def reading_of(name: str) -> str:
    """The handoff that a model's name in a summary ends with; empty for the model alone."""
    reading = name.rpartition("+")[2]
    return reading if reading in READINGS else ""


def markdown(summary: Summary) -> str:
    """The tables as Markdown, in percent with intervals; beside every score the share of truncated responses."""
    lines = ["| model | benchmark | metric | score [interval] | denominator | truncated |", "|---|---|---|---|---|---|"]
    for model, benchmarks in summary["models"].items():
        for benchmark, result in benchmarks.items():
            rule = f"{result['denominator']['rule']}, {result['counted_problems']} of {result['problems']}"
            lines += [
                f"| {model} | {benchmark} | {metric} | {100 * found['mean']:.2f} "
                f"[{100 * found['low']:.2f}, {100 * found['high']:.2f}] | {rule} | {100 * result['truncated']:.1f}% |"
                for metric, found in result["metrics"].items()
            ]
    lines += [
        f"| {model} | macro {name} | {metric} | {100 * found['mean']:.2f} "
        f"[{100 * found['low']:.2f}, {100 * found['high']:.2f}] | {_parts(result)} | "
        f"{100 * result['truncated']:.1f}% |"
        for model, name, result in _macros(summary)
        for metric, found in result["metrics"].items()
    ]
    for title, header, rows in partner_tables(summary):
        lines += ["", f"{title}:", "", f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    if summary["comparisons"]:
        header = ["first", "second", "benchmark", "metric", "difference [interval]", "p", "test"]
        lines += [
            "",
            "Paired comparisons, second minus first:",
            "",
            f"| {' | '.join(header)} |",
            "|---" * len(header) + "|",
        ]
    for found in summary["comparisons"]:
        mean, low, high = (100 * found["difference"][key] for key in ("mean", "low", "high"))
        lines.append(
            f"| {found['first']} | {found['second']} | {found['benchmark']} | {found['metric']} | {mean:+.2f} "
            f"[{low:+.2f}, {high:+.2f}] | {found['p_value']:.3g} | {found['method']} |"
        )
    return "\n".join(lines) + "\n"


PartnerTable = tuple[str, list[str], list[list[str]]]


def partner_tables(summary: Summary) -> list[PartnerTable]:
    """Title, header and rows of the tables of what was read with a partner; none where nothing was.

    A value that is not known (nothing right to keep, nothing that could be read) is a dash.
    """
    found = []
    places = [
        (model, name, _results(summary, model)) for model in summary["models"] if not reading_of(model)
        for name in _results(summary, model)
    ]  # fmt: skip
    handoffs = [name for name, by in READINGS.items() if by and any(reading_of(m) == name for m in summary["models"])]
    if handoffs:
        header = ["model", "benchmark", "metric", "solo"]
        for name in handoffs:
            header += [name, f"{name} / solo", f"solo - {name}"]
        rows = []
        for model, benchmark, results in places:
            for metric, value in results[benchmark]["metrics"].items():
                joint = [_results(summary, f"{model}+{name}").get(benchmark, {}) for name in handoffs]
                if not metric.startswith("pass@") or not any(joint):
                    continue
                row = [model, benchmark, metric, _percent(value["mean"])]
                for one in joint:
                    row += [
                        _percent(one.get("metrics", {}).get(metric, {}).get("mean")),
                        _number(one.get("handoff_ratio", {}).get(metric)),
                        _percent(one.get("handoff_gap", {}).get(metric), signed=True),
                    ]
                rows.append(row)
        found.append(("Handoffs, in percent", header, rows))
    rows = [
        [
            model,
            benchmark,
            _number(result.get("legibility", {}).get("nats_per_token")),
        ]
        for model, benchmark, results in places
        if "legibility" in (result := results[benchmark])
    ]
    if rows:
        found.append(("The partner's reading", ["model", "benchmark", "legibility, nats per token"], rows))
    return found


def _results(summary: Summary, model: str) -> dict[str, Any]:
    """Results of a model by benchmark, and by macro average those that could be made."""
    macros = summary.get("macros", {}).get(model, {})
    return {
        **summary["models"].get(model, {}),
        **{f"macro {name}": result for name, result in macros.items() if "metrics" in result},
    }


def _percent(value: float | None, *, signed: bool = False) -> str:
    return "-" if value is None else f"{100 * value:{'+' if signed else ''}.2f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _macros(summary: Summary) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Model, name and result of every macro average that could be made."""
    for model, macros in summary.get("macros", {}).items():
        for name, result in macros.items():
            if "metrics" in result:
                yield model, name, result


def _parts(result: Mapping[str, Any]) -> str:
    return "mean of " + ", ".join("+".join(part) for part in result["parts"])


def plot_pass_at_k(summary: Summary, output: Path) -> bool:
    """Draw pass@k over k, one panel per benchmark; returns False when there is but one k."""
    curves: dict[str, dict[str, list[tuple[int, Mapping[str, float]]]]] = {}
    for model, benchmarks in summary["models"].items():
        for benchmark, result in benchmarks.items():
            points = [
                (int(name.removeprefix("pass@")), found)
                for name, found in result["metrics"].items()
                if name.startswith("pass@")
            ]
            if len(points) > 1:
                curves.setdefault(benchmark, {})[model] = sorted(points, key=lambda point: point[0])
    if not curves:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(curves), 4), layout="constrained")
    for position, (benchmark, models) in enumerate(curves.items(), 1):
        axes = figure.add_subplot(1, len(curves), position)
        for model, points in models.items():
            k = [number for number, _ in points]
            (line,) = axes.plot(k, [100 * found["mean"] for _, found in points], marker="o", label=model)
            axes.fill_between(
                k,
                [100 * found["low"] for _, found in points],
                [100 * found["high"] for _, found in points],
                color=line.get_color(),
                alpha=0.15,
            )
        axes.set_xscale("log", base=2)
        axes.set(title=benchmark, xlabel="k", ylabel="pass@k (%)")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(output, dpi=150)
    return True
