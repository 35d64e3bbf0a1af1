"""Write the samples of evaluations as one HTML page that needs no server.

    python -m recipes.evaluation.browse outputs/evaluation --output samples.html
    python -m recipes.evaluation.browse outputs/a outputs/b --steps steps.jsonl

Each folder is the output_dir of an evaluation. The page filters by benchmark, model, verdict, length, truncation, text
and disagreement of two models; a handoff's text is coloured by author, and the step probabilities of a process reward
model (`--steps`, the file of `recipes.evaluation.rerank`) are a strip above the response. Filters stand in the page's
address, so that a view can be passed on.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from recipes.common import files
from recipes.common.rows import read_rows
from recipes.errors import DataError, LaunchError

_SUFFIX = ".samples.jsonl"


def read_outputs(folders: Sequence[Path]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The graded samples of evaluations, by (model, benchmark); a model's name is the one in its output folder.

    Raises:
        DataError: a folder without graded samples, or the same model and benchmark in two of them.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for folder in folders:
        paths = sorted(folder.glob(f"*/*{_SUFFIX}"))
        if not paths:
            raise DataError(f"{folder} holds no MODEL/BENCHMARK{_SUFFIX}; expected the output_dir of an evaluation")
        for path in paths:
            key = (path.parent.name, path.name.removesuffix(_SUFFIX))
            if key in found:
                raise DataError(f"{key[0]} on {key[1]} is in two of the folders {', '.join(map(str, folders))}")
            found[key] = read_rows(path)
    return found


def page_data(
    outputs: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]], steps: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """What the page shows, ready for JSON.

    Args:
        outputs: graded samples by (model, benchmark).
        steps: step probabilities by problem and sample; with several models or benchmarks each row names its own
            ("model", "benchmark").

    Raises:
        DataError: steps that could belong to several responses.
    """
    by_response = _steps_by_response(outputs, steps)
    problems: list[dict[str, str]] = []
    places: dict[tuple[str, str], int] = {}
    samples = []
    for (model, benchmark), rows in outputs.items():
        for row in rows:
            asked = (benchmark, str(row["problem"]))
            if asked not in places:
                places[asked] = len(problems)
                problems.append({"text": row.get("question", ""), "gold": row["gold"]})
            sample = {
                "model": model,
                "benchmark": benchmark,
                "problem": str(row["problem"]),
                "question": places[asked],
                "sample": row["sample"],
                "response": row["response"],
                "verdict": "skipped" if row["status"] != "score" else "right" if row["right"] else "wrong",
                "reason": row["reason"],
                "answer": row["answer"],
                "tokens": row["tokens"],
                "finish": row["finish_reason"],
            }
            if row.get("own_spans") is not None:
                sample["own"] = _in_utf16(row["response"], row["own_spans"])
            if (model, *asked, row["sample"]) in by_response:
                sample["steps"] = by_response[model, *asked, row["sample"]]
            samples.append(sample)
    return {
        "models": list(dict.fromkeys(model for model, _ in outputs)),
        "benchmarks": list(dict.fromkeys(benchmark for _, benchmark in outputs)),
        "problems": problems,
        "samples": samples,
    }


def _steps_by_response(
    outputs: Mapping[tuple[str, str], Any], steps: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str, str, int], list[float]]:
    if not steps:
        return {}
    only = next(iter(outputs)) if len(outputs) == 1 else (None, None)
    found = {}
    for row in steps:
        model, benchmark = row.get("model", only[0]), row.get("benchmark", only[1])
        if model is None or benchmark is None:
            raise DataError(
                f"steps of problem {row['problem']} could belong to any of {len(outputs)} outputs; add the keys "
                "model and benchmark to each row"
            )
        found[model, benchmark, str(row["problem"]), int(row["sample"])] = [float(value) for value in row["steps"]]
    return found


def _in_utf16(text: str, spans: Sequence[Sequence[int]]) -> list[list[int]]:
    """Spans counted in characters, counted as JavaScript does: a character beyond the basic plane counts twice."""
    if text.isascii():
        return [list(span) for span in spans]
    return [[len(text[:place].encode("utf-16-le", "surrogatepass")) // 2 for place in span] for span in spans]


def render(data: Mapping[str, Any]) -> str:
    """The page with its data inside."""
    template = package_files("recipes.evaluation").joinpath("samples_page.html").read_text(encoding="utf-8")
    # A response may hold "</script>": inside JSON, "<" may be written as an escape.
    embedded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return template.replace("__DATA__", embedded, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.evaluation.browse", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="output_dir of evaluations")
    parser.add_argument(
        "--output", type=Path, default=Path("samples.html"), help="page to write (default: %(default)s)"
    )
    parser.add_argument("--steps", type=Path, help="step probabilities, as for recipes.evaluation.rerank")
    options = parser.parse_args(arguments)
    try:
        data = page_data(read_outputs(options.folders), read_rows(options.steps) if options.steps else ())
        files.write(options.output, render(data))
    except (LaunchError, OSError) as error:
        print(f"browse: {error}", file=sys.stderr)
        return 2
    except (KeyError, TypeError, ValueError) as error:
        what = "a line of the samples or steps lacks a key or holds another kind of value"
        print(f"browse: {what}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(f"wrote {len(data['samples'])} samples to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
