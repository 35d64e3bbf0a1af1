"""The responses of one model to one benchmark, one JSON line each; a killed run loses no finished problem."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from recipes.errors import CheckpointError


@dataclass(frozen=True)
class Sample:
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


class SampleStore:
    """Append-only file of samples: a problem counts as finished when all its n samples are in it.

    The first line holds the settings that made the samples. Opening a store of other settings is refused; a last line
    cut short by a killed process and the samples of unfinished problems are dropped.
    """

    def __init__(self, path: Path, settings: dict, n: int):
        """Open or create the store.

        Args:
            settings: everything that decides what a response looks like: model, prompts, sampling. JSON values only.
            n: samples per problem.

        Raises:
            CheckpointError: the file was made with other settings, or is damaged before its last line.
        """
        self.path, self._n = Path(path), n
        self._settings = json.loads(json.dumps(settings))
        self._samples: dict[str, list[Sample]] = {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._load()
        self._rewrite()
        self._stream = self.path.open("a", encoding="utf-8")

    def _load(self) -> None:
        header, samples = read_samples(self.path)
        if header is not None and header != self._settings:
            changed = sorted(
                key for key in header.keys() | self._settings.keys() if header.get(key) != self._settings.get(key)
            )
            was = {key: header.get(key) for key in changed}
            now = {key: self._settings.get(key) for key in changed}
            raise CheckpointError(
                f"{self.path} holds responses made with other settings: {_short(was)}, now {_short(now)}; "
                "choose another output_dir, or delete it to start again"
            )
        grouped: dict[str, dict[int, Sample]] = {}
        for sample in samples:
            grouped.setdefault(sample.problem, {})[sample.sample] = sample
        wanted = set(range(self._n))
        self._samples = {
            problem: [found[index] for index in range(self._n)]
            for problem, found in grouped.items()
            if wanted <= found.keys()
        }

    def _rewrite(self) -> None:
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(_line({"settings": self._settings}))
            for samples in self._samples.values():
                stream.writelines(_line(asdict(sample)) for sample in samples)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(self.path)

    @property
    def finished(self) -> dict[str, list[Sample]]:
        """The samples of every finished problem, in order of their position."""
        return self._samples

    def add(self, problem: str, samples: Sequence[Sample]) -> None:
        """Store all samples of a problem.

        Raises:
            ValueError: not n samples with positions 0 to n-1 of this problem.
        """
        if [(sample.problem, sample.sample) for sample in samples] != [(problem, i) for i in range(self._n)]:
            raise ValueError(f"problem {problem}: expected samples 0 to {self._n - 1} of it, found {len(samples)}")
        self._stream.write("".join(_line(asdict(sample)) for sample in samples))
        self._stream.flush()
        self._samples[problem] = list(samples)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def read_samples(path: Path) -> tuple[dict | None, list[Sample]]:
    """Settings (None when the file has none) and samples of a file; unknown keys of a line are ignored.

    Raises:
        CheckpointError: a line before the last cannot be read.
    """
    settings, samples = None, []
    known = {field.name for field in fields(Sample)}
    lines = Path(path).read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if "settings" in entry:
                settings = entry["settings"]
            else:
                samples.append(Sample(**{key: value for key, value in entry.items() if key in known}))
        except (ValueError, TypeError) as error:
            if number == len(lines):
                continue
            raise CheckpointError(f"{path}, line {number}: not a sample: {line[:80]!r}") from error
    return settings, samples


def write_jsonl(path: Path, rows: Iterable[dict]) -> None:
    """Write rows as JSON lines, whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        stream.writelines(_line(row) for row in rows)
    temporary.replace(path)


def _line(entry: dict) -> str:
    # Lone surrogates from a byte-level tokenizer survive as escapes.
    return json.dumps(entry, ensure_ascii=True) + "\n"


def _short(values: dict) -> str:
    return ", ".join(f"{key}={str(value)[:80]}" for key, value in values.items())
