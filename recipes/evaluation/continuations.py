"""What a partner writes behind the beginnings of a model's right responses, for transfer utility."""

import dataclasses
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from recipes.common.sampling import Request, Sampling
from recipes.errors import EnvironmentProblem
from recipes.evaluation.benchmark import Benchmark
from recipes.evaluation.grading import Grade
from recipes.evaluation.handoff import RESERVED_TOKENS
from recipes.evaluation.prompts import encode
from recipes.evaluation.sample_store import SampledResponse, SampleStore
from recipes.evaluation.sampling import problem_seed
from recipes.evaluation.settings import Settings
from recipes.evaluation.transfer_utility import SENTENCE_END, cuts, sentences

Samples = Mapping[str, Sequence[SampledResponse]]
# A problem and the position of one of its cuts.
Cut = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Trace:
    """The sentences of a response, and how many of them are given at each cut."""

    sentences: list[str]
    cuts: list[int]

    def prefix(self, cut: int) -> str:
        """The sentences that are given, without spaces at the end: a tokenizer puts those in front of a word."""
        return "".join(self.sentences[:cut]).rstrip(" \t")


def right_traces(samples: Samples, graded: Mapping[str, Sequence[Grade]], most: int) -> dict[str, SampledResponse]:
    """The first right and finished response to each problem, of at most so many problems."""
    found: dict[str, SampledResponse] = {}
    for problem, responses in samples.items():
        right = (
            sample
            for sample, grade in zip(responses, graded[problem], strict=True)
            if grade.right and sample.finish_reason != "length" and sample.response.strip()
        )
        if len(found) < most and (first := next(right, None)) is not None:
            found[problem] = first
    return found


class Continuations:
    """What the partner writes behind the prefixes of the traces of one benchmark.

    Attributes:
        traces: those that leave the partner room to write, by problem.
        forcing: the text that asks for the answer, empty for none.
    """

    def __init__(
        self,
        engine: Any,
        source: str,
        settings: Settings,
        benchmark: Benchmark,
        responses: Mapping[str, SampledResponse],
        sampling: Sampling,
    ):
        """Cut the responses.

        Args:
            engine: the partner's, of vLLM or behind endpoints.
            source: what the partner is, for the files.
            responses: a right response of each problem.
            sampling: as the responses were sampled; the partner's limit is another.
        """
        self._engine, self._source, self._settings, self._benchmark = engine, source, settings, benchmark
        self._options, self._window = settings.transfer, engine.model_length
        self._sampling = dataclasses.replace(sampling, n=1, max_tokens=self._options.max_tokens)
        self.forcing = self._options.forcing or "" if benchmark.kind == "math" else ""
        problems = {problem.id: problem for problem in benchmark.problems}
        self._prompts = {
            problem: encode(engine.tokenizer, problems[problem], benchmark, settings.prompt) for problem in responses
        }
        self.traces: dict[str, Trace] = {}
        for problem, response in responses.items():
            parts = sentences(response.response, self._options.sentence_end or SENTENCE_END)
            trace = Trace(parts, cuts(len(parts), self._options.every))
            if self._room(problem, trace.prefix(trace.cuts[-1])) >= 1:
                self.traces[problem] = trace

    def _ids(self, problem: str, text: str) -> list[int]:
        return [*self._prompts[problem], *self._tokens(text)]

    def _tokens(self, text: str) -> list[int]:
        return self._engine.tokenizer.encode(text, add_special_tokens=False)

    def _room(self, problem: str, prefix: str) -> int:
        """Tokens that the partner may write, so that the forcing text and what follows it fit behind them."""
        used = len(self._ids(problem, prefix)) + RESERVED_TOKENS
        if self.forcing:
            used += len(self._tokens(self.forcing)) + self._options.forced_tokens
        return min(self._sampling.max_tokens, self._window - used)

    def write(self, path: Path) -> dict[str, list[SampledResponse]]:
        """The continuation of every cut, by problem, in the order of the cuts; those in the file are taken from it.

        Raises:
            LaunchError: an engine that fails, or a file of other settings.
        """
        requests: dict[Cut, tuple[list[int], int]] = {}
        for problem, trace in self.traces.items():
            for row, cut in enumerate(trace.cuts):
                prefix = trace.prefix(cut)
                requests[problem, row] = (self._ids(problem, prefix), self._room(problem, prefix))
        found = self._ask(path, requests)
        return {
            problem: [found[problem, row] for row in range(len(trace.cuts))] for problem, trace in self.traces.items()
        }

    def force(self, path: Path, written: Samples, without: set[Cut]) -> dict[str, list[SampledResponse]]:
        """The continuations, with the forcing text and what the partner writes after it behind those `without` answer.

        Raises:
            LaunchError: as `write`.
        """
        requests: dict[Cut, tuple[list[int], int]] = {}
        texts: dict[Cut, str] = {}
        for problem, row in sorted(without):
            trace = self.traces[problem]
            texts[problem, row] = written[problem][row].response + self.forcing
            ids = self._ids(problem, trace.prefix(trace.cuts[row]) + texts[problem, row])
            # The text may have other tokens than those it was written with.
            if (room := min(self._options.forced_tokens, self._window - len(ids) - 2)) >= 1:
                requests[problem, row] = (ids, room)
        found = self._ask(path, requests)
        return {
            problem: [
                dataclasses.replace(sample, response=texts[problem, row] + found[problem, row].response)
                if (problem, row) in found
                else sample
                for row, sample in enumerate(samples)
            ]
            for problem, samples in written.items()
        }

    def _ask(self, path: Path, requests: Mapping[Cut, tuple[list[int], int]]) -> dict[Cut, SampledResponse]:
        """A response to every request, given as token ids and most tokens."""
        names = {f"{problem}/{row}": (problem, row) for problem, row in requests}
        seed = self._settings.sampling["seed"]
        store = SampleStore(
            path,
            {
                "partner": self._source,
                "benchmark": self._benchmark.fingerprint,
                "requests": sha256(repr(sorted(requests.items())).encode()).hexdigest()[:16],
                "sampling": dataclasses.asdict(self._sampling) | {"seed": seed},
            },
            1,
        )
        try:
            left = [
                Request(name, ids, problem_seed(seed, f"{self._benchmark.name}/transfer", name), most)
                for name, (ids, most) in ((name, requests[key]) for name, key in names.items())
                if name not in store.finished
            ]
            if left:
                self._engine.write(left, self._sampling, store.add)
            if lost := [name for name in names if name not in store.finished]:
                raise EnvironmentProblem(f"the partner left {len(lost)} of {len(names)} continuations unwritten")
            return {key: store.finished[name][0] for name, key in names.items()}
        finally:
            store.close()
