"""Benchmarks: what is asked, where it comes from, and what the answer is."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Literal

import yaml

from recipes.core.files import Row, read_rows
from recipes.errors import ConfigError, DataError
from recipes.evaluation import benchmark_rows
from recipes.evaluation.mmlu_pro import format_question

Kind = Literal["math", "multiple_choice"]
GRADED_ELSEWHERE = {
    "ifeval": "IFEval is scored by a program for each of its instructions; lm-evaluation-harness has them "
    "(lm_eval --tasks ifeval)",
}
# String columns that a benchmark's prompt may name beside the question and its options.
PROMPT_FIELDS = ("text", "context", "title", "table")
_QUESTION_NAMES = ("question", "problem", "Problem", "prompt")
_GOLD_NAMES = ("answer", "Answer", "gold", "ground_truth", "final_answer", "solution", "label")
_WITHOUT_NETWORK = (
    "on a machine without network fetch it elsewhere and give the file (`python -m recipes.evaluation.prepare NAME "
    "--from FILE`, or data.NAME=FILE)"
)


@dataclass(frozen=True)
class Problem:
    """One problem of a benchmark.

    Attributes:
        messages: a ready conversation, for data in verl's format; then `question` is its last user message.
        options: answer options of a multiple-choice question, in order.
        group: subject or level, for accuracies by group.
        fields: the columns of PROMPT_FIELDS that the row has.
    """

    id: str
    question: str
    gold: Any
    messages: tuple[dict[str, str], ...] = ()
    options: tuple[str, ...] = ()
    group: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)


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
    text = files("recipes.evaluation").joinpath("config", "benchmarks.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def benchmark_names() -> list[str]:
    """Names of the benchmarks that ship with the package."""
    return sorted(_table()["benchmarks"])


def describe(name: str) -> dict[str, Any]:
    """The row of `config/benchmarks.yaml`, with its name and its prompt.

    Raises:
        ConfigError: no benchmark of this name.
    """
    table = _table()
    if name in table["benchmarks"]:
        return deepcopy({"name": name, "prompt": table["prompt"], **table["benchmarks"][name]})
    if name in GRADED_ELSEWHERE:
        raise ConfigError(f"{name} is not graded here: {GRADED_ELSEWHERE[name]}", "benchmarks")
    raise ConfigError(
        f"no benchmark {name!r}; expected a jsonl, json or parquet file, or one of {', '.join(benchmark_names())}",
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
        name: a benchmark that ships with the package, or the path of a jsonl, json or parquet file, which is
            multiple choice where all its answers are letters.
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
    if with_shots and "shots" not in card:
        raise ConfigError(
            f"{card['name']} brings no worked examples of its own; name a preset in prompt.few_shot", "prompt.few_shot"
        )
    prepared = read_prepared(data_dir, card["name"]) if path is None and data_dir is not None else None
    shots: Mapping[str, tuple[str, ...]] = {}
    if prepared is not None:
        problems, manifest, shots = prepared
        source = {**card["source"], **manifest}
    else:
        rows, origin = source_rows(card, path)
        problems, source = read_problems(card, rows), {**card["source"], **origin}
    if with_shots and (prepared is None or shots_path):
        shots = read_shots(card, read_rows(shots_path) if shots_path else None)
    if "kind" not in card and problems and all(re.fullmatch("[A-J]", str(problem.gold)) for problem in problems):
        card |= {"kind": "multiple_choice", "grading": {"style": "strict", "letters": _letters(problems)}}
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


def _letters(problems: Sequence[Problem]) -> str:
    """The letters of a file's options: A to D, or as far as its answers go."""
    return "ABCDEFGHIJ"[: max(4, *(ord(problem.gold) - ord("A") + 1 for problem in problems))]


def source_rows(card: Mapping[str, Any], path: str | None) -> tuple[list[Row], dict[str, str]]:
    """The rows of a benchmark from a local file or its public source, and what identifies them.

    Raises:
        ConfigError: no file is given and the benchmark has no public source.
        MissingFileError, DataError: the rows cannot be read or fetched.
    """
    if path is not None:
        return read_rows(path), {"path": str(path), "source_sha256": file_checksum(Path(path))}
    if not has_public_source(card["source"]):
        raise ConfigError(
            f"{card['name']}: give the data as data.{card['name']}=FILE; {card['source'].get('note', '')}".strip(),
            f"data.{card['name']}",
        )
    rows, checksum = fetch(card["source"])
    return rows, {"source_sha256": checksum} if checksum else {}


def has_public_source(source: Mapping[str, Any]) -> bool:
    """Whether the rows can be fetched by anyone; other benchmarks must be given as a file."""
    return bool(source.get("dataset") or source.get("url"))


def file_checksum(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    return sha256(path.read_bytes()).hexdigest()


def fetch(source: Mapping[str, Any]) -> tuple[list[Row], str | None]:
    """Rows of a public source, and the SHA-256 of the file they came in (None from the hub, which has a revision).

    Args:
        source: `url` of one file, or `dataset`, `config`, `split` (one or a list, joined in order) and `revision` of
            the hub.

    Raises:
        DataError: it cannot be fetched or read.
    """
    if source.get("url"):
        return _fetch_url(source["url"])
    import datasets

    splits = source["split"] if isinstance(source["split"], list) else [source["split"]]
    hub = (source["dataset"], source.get("config"))
    try:
        parts = [datasets.load_dataset(*hub, split=split, revision=source.get("revision")) for split in splits]
    except Exception as error:
        # The hub client raises many kinds; without the data there is nothing to run, and the way out is the same.
        raise DataError(f"{hub[0]} cannot be loaded: {type(error).__name__}: {error}; {_WITHOUT_NETWORK}") from error
    return [row for part in parts for row in part], None


def _fetch_url(url: str) -> tuple[list[Row], str]:
    suffix = PurePosixPath(url).suffix
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"rows{suffix if suffix in ('.json', '.parquet') else '.jsonl'}"
        try:
            with urllib.request.urlopen(url, timeout=120) as answer:
                path.write_bytes(answer.read())
        except (OSError, urllib.error.URLError) as error:
            raise DataError(f"{url} cannot be fetched: {error}; {_WITHOUT_NETWORK}") from error
        return read_rows(path), file_checksum(path)


def read_problems(card: Mapping[str, Any], rows: Sequence[Row]) -> tuple[Problem, ...]:
    """The problems of a benchmark from the rows of its public source."""
    read = (benchmark_rows.read(row, card.get("rows"), card["name"]) for row in rows)
    return tuple(_problem(row, number, card) for number, row in enumerate(read))


def read_shots(card: Mapping[str, Any], rows: Sequence[Row] | None) -> dict[str, tuple[str, ...]]:
    """The first worked examples of each group, as the benchmark's own split has them."""
    shots = card["shots"]
    examples: dict[str, list[str]] = {}
    for row in rows if rows is not None else fetch({**card["source"], "split": shots["split"]})[0]:
        text = format_question(row["question"], row["options"], row[shots["reasoning"]])
        examples.setdefault(str(row[card["fields"]["group"]]), []).append(text)
    return {group: tuple(texts[: shots["per_group"]]) for group, texts in examples.items()}


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
    options = row.get(names.get("options", "options"))
    identifier = row.get(names["id"]) if "id" in names else None
    return Problem(
        id=str(number if identifier is None else identifier),
        question=question if messages else str(question).strip(),
        gold=gold,
        messages=messages,
        options=tuple(map(str, options)) if isinstance(options, list) else (),
        group=str(row.get(names["group"], "")) if "group" in names else "",
        fields={key: row[key] for key in PROMPT_FIELDS if isinstance(row.get(key), str)},
    )


def _column(row: Mapping[str, Any], name: str | None, candidates: Sequence[str], role: str) -> Any:
    for candidate in [name] if name else candidates:
        if row.get(candidate) is not None:
            return row[candidate]
    raise DataError(
        f"a row has no {role}: expected a column {name or ' or '.join(candidates)}, found {', '.join(sorted(row))}"
    )


def check_problems(card: Mapping[str, Any], where: Any, problems: Sequence[Problem], limit: int | None = None) -> None:
    """Refuse problems that are not those of the benchmark.

    Raises:
        DataError: none, another number than the benchmark's, missing labels, or ids that occur twice.
    """
    name, expected = card["name"], card.get("count")
    if limit is None and expected is not None and len(problems) != expected:
        raise DataError(
            f"{name}: expected {expected} problems, found {len(problems)} in {where}; with limit=N the count is not "
            "checked"
        )
    unlabelled = sum(problem.gold is None for problem in problems)
    if 0 < unlabelled < len(problems) or (unlabelled and card.get("labels") != "optional"):
        raise DataError(f"{name}: {unlabelled} of {len(problems)} problems have no answer in {where}")
    repeated = len(problems) - len({problem.id for problem in problems})
    if repeated:
        raise DataError(f"{name}: {repeated} problem ids occur twice in {where}; expected unique ids")


def manifest_path(folder: Path, name: str) -> Path:
    """Where the manifest of a prepared benchmark is."""
    return folder / f"{name}.manifest.json"


def read_prepared(
    folder: Path, name: str
) -> tuple[tuple[Problem, ...], dict[str, Any], dict[str, tuple[str, ...]]] | None:
    """Problems, manifest and worked examples of a benchmark prepared in `folder`; None where it is not.

    Raises:
        DataError: its files are not those that the manifest describes.
    """
    if not manifest_path(folder, name).is_file():
        return None
    manifest = json.loads(manifest_path(folder, name).read_text(encoding="utf-8"))
    path = folder / f"{name}.jsonl"
    rows = _read_verified(path, manifest["sha256"])
    problems = tuple(
        Problem(**{**row, "messages": tuple(row["messages"]), "options": tuple(row["options"])}) for row in rows
    )
    shots = {}
    if "shots_sha256" in manifest:
        examples = _read_verified(folder / f"{name}.shots.jsonl", manifest["shots_sha256"])
        shots = {row["group"]: tuple(row["examples"]) for row in examples}
    return problems, {"prepared": str(path), **manifest}, shots


def _read_verified(path: Path, checksum: str) -> list[Row]:
    if not path.is_file() or file_checksum(path) != checksum:
        raise DataError(
            f"{path} is not the file that its manifest describes; prepare it again with "
            "`python -m recipes.evaluation.prepare`"
        )
    return read_rows(path)
