"""The responses of one model to one benchmark; a killed run loses no finished problem."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from recipes.core.files import read_rows
from recipes.core.journal import Journal, read_records, read_settings
from recipes.errors import DataError, JournalError
from reward_fns.completions import Answer


@dataclass(frozen=True)
class SampledResponse:
    """One response.

    Attributes:
        problem: id of the problem.
        sample: position among the responses to it, from 0.
        tokens: length of the response, in tokens; -1 when an endpoint does not say.
        finish_reason: "stop", "length" or what the engine says.
        prompt_tokens: length of the prompt, in tokens; -1 when an endpoint does not say.
        own_tokens: in a handoff, tokens that the evaluated model wrote; -1 otherwise.
        own_spans: in a handoff, the parts of `response` that the evaluated model wrote, [start, end) in characters.
    """

    problem: str
    sample: int
    response: str
    tokens: int
    finish_reason: str
    prompt_tokens: int = -1
    own_tokens: int = -1
    own_spans: list[list[int]] | None = None


Samples = Mapping[str, Sequence[SampledResponse]]
# Called with a problem's id and its n samples, as soon as they are finished.
OnDone = Callable[[str, Sequence[SampledResponse]], None]


def responses_of(problem: str, answer: Answer) -> list[SampledResponse]:
    """The completions of a problem as its responses."""
    # A server that counts tokens and does not list them counts those of all completions together.
    alone = answer.completion_tokens if len(answer.completions) == 1 else None
    return [
        SampledResponse(
            problem=problem,
            sample=number,
            response=written.text,
            tokens=len(written.token_ids) if written.token_ids is not None else -1 if alone is None else alone,
            finish_reason=written.finish_reason,
            prompt_tokens=-1 if answer.prompt_tokens is None else answer.prompt_tokens,
        )
        for number, written in enumerate(answer.completions)
    ]


class SampleStore:
    """Journal of samples: a problem counts as finished when all its n samples are in it.

    The first line holds the settings that made the samples; other settings are refused. Samples of a problem that a
    killed process left unfinished stay in the file and are passed over.

    Args:
        settings: everything that decides what a response looks like: model, prompts, sampling. JSON values only.
        n: samples per problem.

    Raises:
        JournalError: the file was made with other settings, is damaged before its last line, or is being written by
            another process.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], n: int):
        self.path, self._n = Path(path), n
        self._journal = Journal(self.path, settings)
        try:
            grouped = by_problem(_samples(self.path, self._journal.records()))
        except JournalError:
            self._journal.close()
            raise
        self.finished = {
            problem: [samples[index] for index in range(n)]
            for problem, samples in grouped.items()
            if set(range(n)) <= samples.keys()
        }

    def add(self, problem: str, samples: Sequence[SampledResponse]) -> None:
        """Store all samples of a problem.

        Raises:
            ValueError: not n samples with positions 0 to n-1 of this problem.
        """
        if [(sample.problem, sample.sample) for sample in samples] != [(problem, i) for i in range(self._n)]:
            raise ValueError(f"problem {problem}: expected samples 0 to {self._n - 1} of it, found {len(samples)}")
        self._journal.extend(asdict(sample) for sample in samples)
        self.finished[problem] = list(samples)

    def close(self) -> None:
        """Close the file."""
        self._journal.close()


def by_problem(samples: Iterable[SampledResponse]) -> dict[str, dict[int, SampledResponse]]:
    """Samples by problem and position; the last one of a position counts."""
    grouped: dict[str, dict[int, SampledResponse]] = {}
    for sample in samples:
        grouped.setdefault(sample.problem, {})[sample.sample] = sample
    return grouped


def read_samples(path: Path) -> tuple[dict[str, Any] | None, list[SampledResponse]]:
    """Settings (None when the file has none) and samples of a file; unknown keys of a line are ignored.

    Raises:
        JournalError: a line before the last cannot be read.
    """
    return read_settings(path), list(_samples(path, read_records([path], torn_end=True)))


def read_graded(folder: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The graded samples in the output folder of an evaluation, by (model, benchmark).

    Raises:
        DataError: a folder without graded samples.
    """
    suffix = ".samples.jsonl"
    paths = sorted(folder.glob(f"*/*{suffix}"))
    if not paths:
        raise DataError(f"{folder} holds no MODEL/BENCHMARK{suffix}; expected the output_dir of an evaluation")
    return {(path.parent.name, path.name.removesuffix(suffix)): read_rows(path) for path in paths}


def _samples(path: Path, records: Iterable[Mapping[str, Any]]) -> Iterable[SampledResponse]:
    columns = {column.name for column in fields(SampledResponse)}
    for record in records:
        try:
            sample = SampledResponse(**{key: value for key, value in record.items() if key in columns})
        except TypeError as error:
            raise JournalError(f"{path}: a line is no sample ({error}): {str(record)[:80]}") from error
        if not isinstance(sample.tokens, int) or not isinstance(sample.sample, int) or sample.sample < 0:
            raise JournalError(f"{path}: a line is no sample (positions from 0, tokens a number): {str(record)[:80]}")
        yield sample
