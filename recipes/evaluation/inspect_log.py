"""Export evaluations, or the responses that a training run showed, as logs that Inspect AI's viewer and API open.

    python -m recipes.evaluation.inspect_log outputs/evaluation --output logs
    python -m recipes.evaluation.inspect_log CHECKPOINTS/responses.jsonl --output logs
    inspect view --log-dir logs

One log for each model and benchmark. A response is a sample whose epoch is its position; its score is C (right), I
(wrong) or N (could not be judged), with the answer read and the reason. Of a training run a step is a problem, and the
score is the reward. inspect-ai is not needed to write them.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from recipes.core import files
from recipes.core.journal import read_records
from recipes.errors import DataError, LaunchError
from recipes.evaluation.sample_store import read_graded

SCORER = "verl_duets"
_LOG_VERSION = 2
_SHOWN = ("step", "sample", "question", "reward", "response")
_UNKNOWN = {"gold": "", "answer": "", "reason": "reward", "finish_reason": "", "prompt_tokens": -1, "tokens": -1}
_STOP_REASONS = {"stop": "stop", "length": "max_tokens"}


def log_of(
    model: str,
    benchmark: str,
    rows: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    card: Mapping[str, Any],
    created: str,
) -> dict[str, Any]:
    """One log in Inspect's JSON format, version 2.

    Args:
        rows: graded samples.
        result: of the model on the benchmark, from the summary.
        card: run card of the evaluation.
        created: time in ISO 8601 with its zone.
    """
    problems = list(dict.fromkeys(str(row["problem"]) for row in rows))
    identity = sha256(f"{model}/{benchmark}/{created}".encode()).hexdigest()[:22]
    metrics = {name: {"name": name, "value": interval["mean"]} for name, interval in result["metrics"].items()}
    return {
        "version": _LOG_VERSION,
        "status": "success",
        "eval": {
            "eval_id": identity,
            "run_id": identity,
            "task_id": identity,
            "created": created,
            "task": benchmark,
            "task_version": 0,
            "dataset": {"name": benchmark, "samples": len(problems), "sample_ids": problems, "shuffled": False},
            "model": model,
            "config": {"epochs": result["responses_per_problem"]},
            "packages": card["versions"],
            "metadata": {
                "config": card["config"],
                "source": card["benchmarks"].get(benchmark, {}),
                "denominator": result.get("denominator"),
                "truncated": result.get("truncated"),
            },
        },
        "plan": {"name": "plan", "steps": []},
        "results": {
            "total_samples": len(rows),
            "completed_samples": len(rows),
            "scores": [{"name": SCORER, "scorer": SCORER, "metrics": metrics}],
        },
        "stats": {"started_at": created, "completed_at": created},
        "samples": [_sample(model, row) for row in rows],
    }


def _sample(model: str, row: Mapping[str, Any]) -> dict[str, Any]:
    answer = {"role": "assistant", "content": row["response"], "source": "generate"}
    choice = {"message": answer, "stop_reason": _STOP_REASONS.get(row["finish_reason"], "unknown")}
    output: dict[str, Any] = {"model": model, "choices": [choice]}
    tokens = {"input_tokens": row["prompt_tokens"], "output_tokens": row["tokens"]}
    if min(tokens.values()) >= 0:
        output["usage"] = tokens | {"total_tokens": sum(tokens.values())}
    value = row.get("reward")
    if value is None:
        value = "N" if row["status"] != "score" else "C" if row["right"] else "I"
    metadata = {"reason": row["reason"]}
    if row.get("own_spans") is not None:
        metadata["own_spans"] = row["own_spans"]
    return {
        "id": str(row["problem"]),
        "epoch": row["sample"] + 1,
        "input": row["question"],
        "target": row["gold"],
        "messages": [{"role": "user", "content": row["question"]}, answer],
        "output": output,
        "scores": {SCORER: {"value": value, "answer": row["answer"], "explanation": row["reason"] or "right"}},
        "metadata": metadata,
    }


def export(folder: Path, output: Path) -> list[Path]:
    """Write the logs of an evaluation; returns their paths.

    Raises:
        DataError: a folder that is no output of an evaluation.
    """
    try:
        card = json.loads((folder / "run_card.json").read_text(encoding="utf-8"))
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} is no output folder of a finished evaluation: {error}") from error
    paths = []
    for (model, benchmark), rows in read_graded(folder).items():
        changed = (folder / model / f"{benchmark}.samples.jsonl").stat().st_mtime
        created = datetime.fromtimestamp(int(changed), UTC).isoformat()
        log = log_of(model, benchmark, rows, summary["models"][model][benchmark], card, created)
        paths.append(_write(log, output))
    return paths


def export_shown(path: Path, output: Path) -> Path:
    """Write the log of the responses that a training run showed; returns its path.

    Args:
        path: the run's `responses.jsonl`. Of a step that was made again after a kill the later lines stand.

    Raises:
        DataError: a file that holds something else, or nothing.
    """
    lines = list(read_records([path], torn_end=True))
    if not lines or not all(set(_SHOWN) <= line.keys() for line in lines):
        raise DataError(f"{path} holds no responses of a training run: expected {', '.join(_SHOWN)}")
    rows = {(line["step"], line["sample"]): line | _UNKNOWN | {"problem": f"step {line['step']}"} for line in lines}
    reward = sum(row["reward"] for row in rows.values()) / len(rows)
    result = {"metrics": {"mean reward": {"mean": reward}}, "responses_per_problem": 2}
    created = datetime.fromtimestamp(int(path.stat().st_mtime), UTC).isoformat()
    card: dict[str, Any] = {"versions": {}, "config": {}, "benchmarks": {}}
    return _write(log_of(path.parent.name, "training", list(rows.values()), result, card, created), output)


def _write(log: Mapping[str, Any], output: Path) -> Path:
    described = log["eval"]
    name = re.sub(r"[^\w.-]+", "-", f"{described['task']}_{described['model']}")
    path = output / f"{described['created'].replace(':', '-')}_{name}_{described['task_id']}.json"
    files.write_json(path, log, indent=None)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.evaluation.inspect_log", description=__doc__.splitlines()[0]
    )
    parser.add_argument("source", type=Path, help="output_dir of an evaluation, or responses.jsonl of a training run")
    parser.add_argument("--output", type=Path, default=Path("logs"), help="folder of logs (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        shown = options.source.suffix == ".jsonl"
        paths = [export_shown(options.source, options.output)] if shown else export(options.source, options.output)
    except (LaunchError, KeyError, OSError) as error:
        print(f"inspect_log: {error}", file=sys.stderr)
        return 2
    print("\n".join(f"wrote {path}" for path in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
