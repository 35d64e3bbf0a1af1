"""Benchmarks: what is asked, where it comes from, and what the answer is."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from recipes.core.rows import read_rows
from recipes.errors import ConfigError, DataError
from recipes.evaluation import benchmark_rows, prepared_data
from recipes.evaluation.grading import Kind
from recipes.evaluation.mmlu_pro import format_question
from recipes.evaluation.problem import PROMPT_FIELDS, Problem
from recipes.evaluation.sources import Rows, fetch, file_checksum, has_public_source

GRADED_ELSEWHERE = {
    "ifeval": "IFEval is scored by a program for each of its instructions; lm-evaluation-harness has them "
    "(lm_eval --tasks ifeval)",
}
_QUESTION_NAMES = ("question", "problem", "Problem", "prompt")
_GOLD_NAMES = ("answer", "Answer", "gold", "ground_truth", "final_answer", "solution", "label")


@dataclass(frozen=True)
class Benchmark:
    """A named set of problems with the prompt and the grading that belong to it.

    Attributes:
        shots: worked examples of each group, where the benchmark brings its own.
    """

    name: str
    kind: Kind
    problems: tuple[Problem, ...]
    prompt: str
    grading: Mapping[str, Any]
    source: Mapping[str, Any]
    shots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def labelled(self) -> bool:
        """Whether the gold answers are known; a leaderboard's test split has none."""
        return self.problems[0].gold is not None

    @property
    def fingerprint(self) -> str:
        """SHA-256 over ids, questions and gold answers: two runs compare only if it is the same."""
        rows = [[problem.id, problem.question, str(problem.gold)] for problem in self.problems]
        return sha256(json.dumps(rows).encode()).hexdigest()[:16]


@cache
def _table() -> dict[str, Any]:
    """`config/benchmarks.yaml`."""
    text = files("recipes.evaluation").joinpath("config", "benchmarks.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def known_benchmarks() -> list[str]:
    """Names of the benchmarks that ship with the package."""
    return sorted(_table()["benchmarks"])


def describe(name: str) -> dict[str, Any]:
    """What the table says of a benchmark, with its name and its prompt.

    Raises:
        ConfigError: no benchmark of this name.
    """
    table = _table()
    if name in table["benchmarks"]:
        return deepcopy({"name": name, "prompt": table["prompt"], **table["benchmarks"][name]})
    if name in GRADED_ELSEWHERE:
        raise ConfigError(f"{name} is not graded here: {GRADED_ELSEWHERE[name]}", "benchmarks")
    raise ConfigError(
        f"no benchmark {name!r}; expected a jsonl, json or parquet file, or one of {', '.join(known_benchmarks())}",
        "benchmarks",
    )


def load(
    name: str,
    path: str | None = None,
    limit: int | None = None,
    *,
    with_shots: bool = False,
    shots_path: str | None = None,
    data_dir: Path | None = None,
) -> Benchmark:
    """Load a benchmark by name, or any local file of problems.

    Args:
        name: a benchmark that ships with the package, or the path of a jsonl, json or parquet file.
        path: local copy of a named benchmark's data, in the shape of its public source.
        limit: keep the first so many problems; the expected count is then not checked.
        with_shots: also load the worked examples that the benchmark brings.
        shots_path: local copy of those.
        data_dir: folder of `recipes.evaluation.prepare`; a benchmark prepared there is read from it.

    Raises:
        ConfigError: an unknown benchmark, or one whose data must be given as `path`.
        MissingFileError: no such file.
        DataError: the data lacks a column, repeats an id, or has another count than the benchmark.
    """
    if Path(name).suffix in (".jsonl", ".json", ".parquet"):
        card: dict[str, Any] = {"name": Path(name).stem, "source": {}}
        path = name
    else:
        card = describe(name)
    found = prepared_data.read(data_dir, card["name"]) if path is None and data_dir is not None else None
    shots: Mapping[str, tuple[str, ...]] = {}
    if with_shots and "shots" not in card:
        raise ConfigError(
            f"{card['name']} brings no worked examples of its own; name a preset in prompt.few_shot", "prompt.few_shot"
        )
    if found is not None:
        problems, source, shots = found.problems, {**card["source"], **found.manifest}, found.shots
    else:
        rows, origin = source_rows(card, path)
        problems, source = read_problems(card, rows), {**card["source"], **origin}
    if with_shots and (found is None or shots_path):
        shots = read_shots(card, read_rows(Path(shots_path)) if shots_path else None)
    check_problems(card, source.get("path") or source.get("url") or source.get("dataset"), problems, limit)
    return Benchmark(
        name=card["name"],
        kind=card.get("kind", "math"),
        problems=problems[:limit],
        prompt=card.get("prompt", "{question}"),
        grading=card.get("grading", {}),
        source={**source, **({"published": card["published"]} if "published" in card else {})},
        shots=shots,
    )


def source_rows(card: Mapping[str, Any], path: str | None) -> tuple[Rows, dict[str, str]]:
    """The rows of a benchmark from a local file or its public source, and what identifies them.

    Raises:
        ConfigError: no file is given and the benchmark has no public source.
        MissingFileError, DataError: the rows cannot be read or fetched.
    """
    if path is not None:
        return read_rows(Path(path)), {"path": str(path), "source_sha256": file_checksum(Path(path))}
    if not has_public_source(card["source"]):
        raise ConfigError(
            f"{card['name']}: give the data as data.{card['name']}=FILE; {card['source'].get('note', '')}".strip(),
            f"data.{card['name']}",
        )
    rows, checksum = fetch(card["source"])
    return rows, {"source_sha256": checksum} if checksum else {}


def read_problems(card: Mapping[str, Any], rows: Rows) -> tuple[Problem, ...]:
    """The problems of a benchmark from the rows of its public source."""
    kept = [row for row in rows if _passes(row, card.get("filters", ()))]
    read = (benchmark_rows.read(row, card.get("rows"), card["name"]) for row in kept)
    return tuple(_problem(row, number, card) for number, row in enumerate(read))


def read_shots(card: Mapping[str, Any], rows: Rows | None) -> dict[str, tuple[str, ...]]:
    """The first worked examples of each group, as the benchmark's own split has them."""
    described = card["shots"]
    found: dict[str, list[str]] = {}
    for row in rows if rows is not None else fetch({**card["source"], "split": described["split"]})[0]:
        example = format_question(row["question"], row["options"], row[described["reasoning"]])
        found.setdefault(str(row[card["fields"]["group"]]), []).append(example)
    return {group: tuple(examples[: described["per_group"]]) for group, examples in found.items()}


def _passes(row: Mapping[str, Any], filters: Sequence[Mapping[str, Any]]) -> bool:
    return all(str(rule["contains"]) in str(row.get(rule["field"], "")) for rule in filters)


def _problem(row: Mapping[str, Any], number: int, card: Mapping[str, Any]) -> Problem:
    names = card.get("fields", {})
    messages: tuple[dict[str, str], ...] = ()
    if isinstance(row.get("prompt"), list) and isinstance(row.get("reward_model"), dict):
        messages = tuple({"role": m["role"], "content": m["content"]} for m in row["prompt"])
        question, gold = messages[-1]["content"], row["reward_model"].get("ground_truth")
    else:
        question = _column(row, names.get("question"), _QUESTION_NAMES, "question")
        optional = card.get("labels") == "optional"
        gold = row.get(names["gold"]) if optional else _column(row, names.get("gold"), _GOLD_NAMES, "answer")
    options = row.get(names["options"]) if "options" in names else row.get("options")
    identifier = row.get(names["id"]) if "id" in names else None
    return Problem(
        id=str(number if identifier is None else identifier),
        question=str(question).strip() if not messages else question,
        gold=gold,
        messages=messages,
        options=tuple(map(str, options)) if isinstance(options, list) else (),
        group=str(row.get(names["group"], "")) if "group" in names else "",
        fields={key: row[key] for key in PROMPT_FIELDS if isinstance(row.get(key), str)},
    )


def _column(row: Mapping[str, Any], name: str | None, candidates: Sequence[str], what: str) -> Any:
    for candidate in [name] if name else candidates:
        if row.get(candidate) is not None:
            return row[candidate]
    raise DataError(
        f"a row has no {what}: expected a column {name or ' or '.join(candidates)}, found {', '.join(sorted(row))}"
    )


def check_problems(card: Mapping[str, Any], where: Any, problems: Sequence[Problem], limit: int | None = None) -> None:
    """Refuse problems that are not those of the benchmark.

    Raises:
        DataError: none, another number than the benchmark's, missing labels, or ids that occur twice.
    """
    if not problems:
        raise DataError(f"{card['name']}: {where} holds no problem that passes its filters {card.get('filters', [])}")
    expected = card.get("count")
    if limit is None and expected is not None and len(problems) != expected:
        raise DataError(
            f"{card['name']}: expected {expected} problems, found {len(problems)} in {where}; with limit=N the count "
            "is not checked"
        )
    unlabelled = sum(problem.gold is None for problem in problems)
    if 0 < unlabelled < len(problems) or (unlabelled and card.get("labels") != "optional"):
        raise DataError(f"{card['name']}: {unlabelled} of {len(problems)} problems have no answer in {where}")
    repeated = len(problems) - len({problem.id for problem in problems})
    if repeated:
        raise DataError(f"{card['name']}: {repeated} problem ids occur twice in {where}; expected unique ids")
