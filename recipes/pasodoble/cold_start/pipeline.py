"""The cold-start pipeline: propose, have a judge solve, keep what agrees, then let the generator solve what was kept.

Source: PasoDoble, ``generate_sft.py``. Every paid-for result goes into a journal before anything is built on it, and
the datasets are a pure function of the journal. Document k of the stream is a pure function of the seed, and records
are taken in stream order, so neither concurrency nor a kill changes which records come out.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from recipes.core.journal import Journal
from recipes.pasodoble.cold_start.generators import Generator, whole_text
from recipes.pasodoble.cold_start.records import Record, proposer_record, solver_record
from recipes.pasodoble.knowledge import KnowledgeBase, draw_index
from recipes.pasodoble.parsing import extract_answer, extract_question
from recipes.pasodoble.prompts import Messages, Prompts
from reward_fns.endpoint import Endpoint
from reward_fns.errors import EndpointError

Key = tuple[int, int]
"""Document in the stream, sample of it."""

_LOOKAHEAD = 4


class ColdStartStopped(RuntimeError):
    """The run ended early; the journal holds what it has, and the same command goes on from there."""


@dataclass(frozen=True)
class ColdStartSettings:
    """How much to make and when to give up."""

    records: int = 2800
    """Kept Proposer records wanted."""
    seed: int = 42
    documents_in_flight: int = 4
    max_failures: int = 20
    """Requests in a row that may fail after all their tries."""
    max_fruitless: int = 100
    """Documents in a row that may give no record."""
    request_box: bool = True
    solver: bool = True

    def __post_init__(self):
        for name in ("records", "documents_in_flight", "max_failures", "max_fruitless"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class ColdStart:
    """One run over a journal; ``proposer_records`` and ``solver_records`` give the datasets at any time."""

    def __init__(
        self,
        settings: ColdStartSettings,
        journal: Journal,
        base: KnowledgeBase | None,
        generator: Generator,
        judge: Endpoint,
        agree: Callable[[str | None, str | None], Awaitable[bool]],
        prompts: Prompts | None = None,
        on_progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    ):
        """Without ``base`` the Proposer is prompted without knowledge; ``agree`` compares two final answers."""
        self.settings = settings
        self._journal, self._base, self._generator, self._judge = journal, base, generator, judge
        self._agree, self._prompts, self._on_progress = agree, prompts or Prompts(), on_progress
        self._proposals: dict[int, list[str]] = {}
        self._candidates: dict[int, list[tuple[Key, str, str]]] = {}
        self._verdicts: dict[Key, dict[str, Any]] = {}
        self._solutions: dict[Key, dict[str, Any]] = {}
        self._given_up: set[int] = set()
        self._failed: Counter[str] = Counter()
        self._failures_in_a_row = 0
        self._front = 0
        """First unfinished document; the documents before it are the stream."""
        self._stream: list[Key] = []
        """Confirmed proposals of the documents before the front."""
        self._fruitless_in_a_row = 0
        for event in journal.records():
            self._apply(event)
        self._advance()
        self._fruitless_in_a_row = 0

    async def run(self) -> None:
        """Work until both datasets are complete.

        Raises:
            ColdStartStopped: too many failures, or too many documents without a record.
            EndpointError: an endpoint refuses every request.
        """
        self._report_progress()
        documents = (k for k in itertools.count(self._front) if not self._finished(k))
        await self._in_window(documents, self._work_on_document, lambda: len(self._stream) >= self.settings.records)
        if self.settings.solver:
            unsolved = (key for key in self._selected() if key not in self._solutions)
            await self._in_window(unsolved, self._solve, lambda: False)

    def proposer_records(self) -> list[Record]:
        """The first ``records`` proposals of the stream that the judge confirmed."""
        return [self._proposer_record(key) for key in self._selected()]

    def solver_records(self) -> list[Record]:
        """Solutions of the kept proposals that the judge's answer confirms."""
        records = []
        for key in self._selected() if self.settings.solver else ():
            proposal, solutions = self._proposer_record(key), self._solutions.get(key)
            prompt = self._solver_prompt(proposal["problem"])
            if solutions is None:
                continue
            for completion, agrees in zip(solutions["completions"], solutions["agree"], strict=True):
                if agrees:
                    records.append(solver_record(prompt, completion, proposal))
        return records

    def report(self) -> dict[str, Any]:
        """Where proposals and solutions were lost, as counts and shares."""
        completions = [text for texts in self._proposals.values() for text in texts]
        verdicts = list(self._verdicts.values())
        solutions = [self._solutions[key] for key in self._selected() if key in self._solutions]
        solved = [text for solution in solutions for text in solution["completions"]]
        confirmed = sum(verdict["agrees"] for verdict in verdicts)
        agreeing = sum(sum(solution["agree"]) for solution in solutions)
        selected = len(self._selected())
        return {
            "complete": selected == self.settings.records and (not self.settings.solver or len(solutions) == selected),
            "proposer": {
                "documents": len(self._proposals),
                "completions": len(completions),
                "without_question": sum(not extract_question(text) for text in completions),
                "without_answer": sum(not extract_answer(text) for text in completions),
                "judged": len(verdicts),
                "judge_refused": sum(verdict["refused"] for verdict in verdicts),
                "judge_without_answer": sum(
                    not verdict["refused"] and not extract_answer(verdict["text"]) for verdict in verdicts
                ),
                "confirmed": confirmed,
                "confirmed_share_of_judged": confirmed / len(verdicts) if verdicts else 0.0,
                "kept": selected,
            },
            "solver": {
                "questions": len(solutions),
                "completions": len(solved),
                "without_answer": sum(not extract_answer(text) for text in solved),
                "kept": agreeing,
                "kept_share": agreeing / len(solved) if solved else 0.0,
            },
            "failed_in_this_run": dict(self._failed),
        }

    def _apply(self, event: dict[str, Any]) -> None:
        kind, document = event["kind"], event["document"]
        if kind == "proposals":
            self._proposals[document] = event["completions"]
            self._candidates[document] = [
                ((document, sample), question, answer)
                for sample, text in enumerate(event["completions"])
                if (question := extract_question(text)) and (answer := extract_answer(text))
            ]
        elif kind == "verdict":
            self._verdicts[document, event["sample"]] = event
        elif kind == "solutions":
            self._solutions[document, event["sample"]] = event
        else:
            raise ValueError(f"the journal holds an event of unknown kind {kind!r}")

    def _record(self, event: dict[str, Any]) -> None:
        self._journal.append(event)
        self._apply(event)
        self._advance()
        self._report_progress()

    def _report_progress(self) -> None:
        self._on_progress("proposer", len(self._selected()), self.settings.records)
        if self.settings.solver:
            self._on_progress("solver", len(self._solutions), self.settings.records)

    def _finished(self, document: int) -> bool:
        if document in self._given_up:
            return True
        return document in self._proposals and all(key in self._verdicts for key, _, _ in self._candidates[document])

    def _advance(self) -> None:
        while self._finished(self._front):
            samples = range(len(self._proposals.get(self._front, ())))
            keys = [(self._front, j) for j in samples if self._verdicts.get((self._front, j), {}).get("agrees")]
            self._fruitless_in_a_row = 0 if keys else self._fruitless_in_a_row + 1
            self._stream += keys
            self._front += 1

    def _selected(self) -> list[Key]:
        return self._stream[: self.settings.records]

    def _knowledge(self, document: int) -> str | None:
        return None if self._base is None else self._base.draw(document)

    def _solver_prompt(self, question: str) -> Messages:
        return self._prompts.for_solver(question, request_box=self.settings.request_box)

    def _proposer_record(self, key: Key) -> Record:
        document, sample = key
        knowledge = self._knowledge(document)
        prompt, completion = self._prompts.for_proposer(knowledge), self._proposals[document][sample]
        return proposer_record(prompt, completion, self._verdicts[key]["text"], knowledge or "")

    async def _work_on_document(self, document: int) -> None:
        if document not in self._proposals:
            completions = await self._attempt(
                "generator",
                self._generator.generate(self._prompts.for_proposer(self._knowledge(document)), self._seed(document)),
            )
            if completions is None:
                self._give_up(document)
                return
            self._record({"kind": "proposals", "document": document, "completions": completions})
        unjudged = [item for item in self._candidates[document] if item[0] not in self._verdicts]
        results = await asyncio.gather(*(self._judge_one(*item) for item in unjudged), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if not self._finished(document):
            self._give_up(document)
        if self._fruitless_in_a_row >= self.settings.max_fruitless:
            raise ColdStartStopped(
                f"{self._fruitless_in_a_row} documents in a row gave no record that the judge confirms: look at the "
                "report, then change the generator, the judge or the prompts"
            )

    async def _judge_one(self, key: Key, question: str, answer: str) -> None:
        reply = await self._attempt("judge", self._judge.chat(self._solver_prompt(question)))
        if reply is None:
            return
        (completion,) = reply.completions
        text = whole_text(completion)
        agrees = await self._agree(extract_answer(text), answer)
        self._record(
            {
                "kind": "verdict",
                "document": key[0],
                "sample": key[1],
                "text": text,
                "refused": completion.refused,
                "agrees": agrees and not completion.refused,
            }
        )

    async def _solve(self, key: Key) -> None:
        question = extract_question(self._proposals[key[0]][key[1]])
        gold = extract_answer(self._verdicts[key]["text"])
        completions = await self._attempt(
            "generator", self._generator.generate(self._solver_prompt(question), self._seed(*key))
        )
        if completions is None:
            return
        agree = await asyncio.gather(*(self._agree(extract_answer(text), gold) for text in completions))
        self._record(
            {"kind": "solutions", "document": key[0], "sample": key[1], "completions": completions, "agree": agree}
        )

    def _seed(self, document: int, sample: int = -1) -> int:
        return draw_index(self.settings.seed, sample, document, 2**31)

    async def _attempt(self, who: str, request: Awaitable[Any]) -> Any:
        """Return the result, or None if this request failed for good and the next may still work."""
        try:
            result = await request
        except EndpointError as error:
            if error.kind == "refused":
                raise
            self._failed[who] += 1
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= self.settings.max_failures:
                raise ColdStartStopped(
                    f"{self._failures_in_a_row} requests in a row failed, the last because {error}"
                ) from error
            return None
        self._failures_in_a_row = 0
        return result

    def _give_up(self, document: int) -> None:
        """Leave out a document that failed; the next run asks for it again."""
        self._given_up.add(document)
        self._advance()

    async def _in_window(
        self, items: Iterator[Any], work: Callable[[Any], Awaitable[None]], enough: Callable[[], bool]
    ) -> None:
        """Work on several items at a time, never far ahead of the oldest one: what lies ahead may not be needed."""
        width = self.settings.documents_in_flight
        running: dict[asyncio.Task, int] = {}
        started = 0
        try:
            while not enough():
                while len(running) < width and started - min(running.values(), default=started) < _LOOKAHEAD * width:
                    if (item := next(items, None)) is None:
                        break
                    running[asyncio.create_task(work(item))] = started
                    started += 1
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del running[task]
                    task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
