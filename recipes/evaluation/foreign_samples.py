"""Sample files of lm-evaluation-harness and lighteval, read as responses to the problems of a benchmark.

lm-evaluation-harness writes `samples_TASK_DATE.jsonl` with `--log_samples`, one row for each document and filter;
lighteval writes `details_TASK_DATE.parquet` with `--save-details`. Their own scores are left aside: the responses are
graded here. Problems are found by their question, not by their position, so that another order or subset does no harm.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from recipes.errors import DataError
from recipes.evaluation.problem import Problem
from recipes.evaluation.sample_store import SampledResponse

Rows = Sequence[Mapping[str, Any]]


def is_lm_eval(rows: Rows) -> bool:
    """Whether rows are those of lm-evaluation-harness."""
    return {"doc_id", "doc", "resps"} <= rows[0].keys()


def is_lighteval(rows: Rows) -> bool:
    """Whether rows are details of lighteval, of either generation of its format."""
    return {"doc", "model_response"} <= rows[0].keys() or {"full_prompt", "predictions"} <= rows[0].keys()


def read_foreign(rows: Rows, problems: Sequence[Problem], where: str) -> dict[str, list[SampledResponse]]:
    """The responses in a sample file of another harness, by problem id.

    Args:
        where: name of the file, for errors.

    Raises:
        DataError: rows whose question is no problem of the benchmark, or that hold no generated text (scores of
            options alone cannot be graded again).
    """
    finder = _Finder(problems)
    found: dict[str, list[SampledResponse]] = {}
    unknown = []
    for texts, responses in _lm_eval(rows) if is_lm_eval(rows) else _lighteval(rows):
        problem = finder.find(texts)
        if problem is None:
            unknown.append(texts[0][:80])
            continue
        if problem in found:
            raise DataError(f"{where}: two rows hold responses to problem {problem}")
        if not responses or not all(isinstance(text, str) for text, _ in responses):
            raise DataError(
                f"{where}: problem {problem} has no generated text but {str(responses)[:60]}; tasks that score the "
                "options by log-likelihood cannot be graded again"
            )
        found[problem] = [
            SampledResponse(problem, number, text, tokens, "unknown") for number, (text, tokens) in enumerate(responses)
        ]
    if unknown:
        raise DataError(
            f"{where}: {len(unknown)} of {len(rows)} questions are no problem of the benchmark, such as {unknown[0]!r}"
        )
    return found


Response = tuple[Any, int]


def _lm_eval(rows: Rows) -> Iterator[tuple[list[str], list[Response]]]:
    seen = set()
    for row in rows:
        # Each filter of a task has a row of its own, with the same responses.
        if row["doc_id"] in seen:
            continue
        seen.add(row["doc_id"])
        arguments = row.get("arguments")
        texts = [*_strings(row["doc"]), *_strings(arguments)]
        yield texts or [""], [(text, -1) for request in row["resps"] for text in _listed(request)]


def _lighteval(rows: Rows) -> Iterator[tuple[list[str], list[Response]]]:
    for row in rows:
        if "model_response" in row:
            answer = row["model_response"]
            texts, generated = [*_strings(row["doc"])], answer.get("output_tokens") or []
            responses = _listed(answer["text"])
        else:
            texts = [*_strings(row.get("example", "")), *_strings(row["full_prompt"])]
            responses, generated = _flat(row["predictions"]), row.get("cont_tokens") or []
        lengths = [len(tokens) if isinstance(tokens, list | tuple) else -1 for tokens in generated]
        if len(lengths) != len(responses):
            lengths = [-1] * len(responses)
        yield texts or [""], list(zip(responses, lengths, strict=True))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _flat(value: Any) -> list[Any]:
    return [item for part in value for item in _flat(part)] if isinstance(value, list | tuple) else [value]


def _strings(value: Any) -> Iterator[str]:
    """All texts inside a value, outermost and first ones first."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, Iterable):
        for part in value:
            yield from _strings(part)


class _Finder:
    """Finds the problem that a row is about."""

    def __init__(self, problems: Sequence[Problem]):
        self._by_question = {_plain(problem.question): problem.id for problem in problems}
        if len(self._by_question) != len(problems):
            raise DataError("two problems of the benchmark have the same question; responses cannot be told apart")

    def find(self, texts: Sequence[str]) -> str | None:
        """The problem whose question is one of the texts, or else stands last in one of them."""
        plain = [_plain(text) for text in texts]
        for text in plain:
            if text in self._by_question:
                return self._by_question[text]
        for text in plain:
            # Worked examples stand in front of the question, and may be problems themselves.
            ends = {
                (text.rfind(question) + len(question), len(question)): found
                for question, found in self._by_question.items()
                if question and question in text
            }
            if ends:
                return ends[max(ends)]
        return None


def _plain(text: str) -> str:
    return " ".join(text.split())
