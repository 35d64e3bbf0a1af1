r"""Score an answer in mathematics: the function to name in a verl job, its batch and async forms.

`strict`, the default, is meant for training: the answer is what stands in the last closed `\boxed{}` after the
thinking, and it is compared by the written policy of REFERENCE.md. `lenient` is meant for evaluation: math-verify with
its defaults on the whole response.
Either way nothing can hang: formulas are compared in worker processes with a time and a memory limit.
"""

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from reward_fns.equivalence import NeedsAlgebra, compare, refuse_algebra
from reward_fns.errors import OptionError, ResultError
from reward_fns.extract import MAX_RESPONSE_CHARS, AnswerScope, extract_boxed
from reward_fns.gold import gold_answers, gold_problem, refuse_reading
from reward_fns.pool import Kind, Outcome, Pool, shared_pool
from reward_fns.result import Fail, Score, Skip, deliver
from reward_fns.text import after_thinking

Mode = Literal["strict", "lenient"]

_VERL_KWARGS = frozenset({"reward_router_address", "reward_model_tokenizer", "reward_model_name"})
_Judgement = Generator[list[tuple[Any, ...]], Any, Score | Skip]
_STRICT, _LENIENT = "reward_fns.algebra:judge", "reward_fns.algebra:judge_leniently"
_RESPONSE_FAULTS = {Kind.TIME_OUT: "time_out", Kind.MEMORY: "out_of_memory", Kind.CRASH: "crash"}


@dataclass(frozen=True)
class MathOptions:
    """How answers are judged.

    Args:
        mode: `strict` or `lenient`.
        answer_scope: where a box counts: `final`, after the thinking, or `anywhere`. Lenient mode always reads all.
        time_limit: seconds of CPU time for one comparison; a worker that gets no processor is a Skip (`starved`).
        memory_limit: bytes by which a worker may grow.
        workers: worker processes of this process; None: REWARD_FNS_WORKERS, else 2.
        on_skip: in `compute_score`, `mark` returns a zero marked by `status` and `skipped`; `raise` raises SkipError.
        skip_share: in `compute_score`, the share of the last 256 samples that may be skipped before BudgetSpent
            is raised.

    Raises:
        OptionError: a value that is not among those.
    """

    mode: Mode = "strict"
    answer_scope: AnswerScope = "final"
    time_limit: float = 5.0
    memory_limit: int = 1 << 30
    workers: int | None = None
    on_skip: Literal["mark", "raise"] = "mark"
    skip_share: float = 0.1

    def __post_init__(self) -> None:
        for name, allowed in (
            ("mode", ("strict", "lenient")),
            ("answer_scope", ("final", "anywhere")),
            ("on_skip", ("mark", "raise")),
        ):
            if getattr(self, name) not in allowed:
                raise OptionError(f"{name} is {getattr(self, name)!r}, expected one of {allowed}")
        if not self.time_limit > 0 or not self.memory_limit > 0 or not 0 <= self.skip_share <= 1:
            raise OptionError(f"limits must be positive and skip_share in [0, 1]: {self}")

    def pool(self) -> Pool:
        """The pool of this process for these limits."""
        return shared_pool(self.workers, self.memory_limit)

    def submit(self, tasks: Iterable[tuple[Any, ...]]) -> list[Future[Outcome]]:
        """Queue tasks, each a function and its arguments, with the time limit."""
        return [self.pool().submit(*task, time_limit=self.time_limit) for task in tasks]


@functools.lru_cache(maxsize=64)
def _options(items: tuple[tuple[str, Any], ...]) -> MathOptions:
    options = dict(items)
    unknown = sorted(set(options) - set(MathOptions.__dataclass_fields__))
    if unknown:
        raise OptionError(f"unknown option {unknown}; known: {sorted(MathOptions.__dataclass_fields__)}")
    return MathOptions(**options)


def read_options(kwargs: dict[str, Any]) -> MathOptions:
    """The options in `reward_kwargs`; what verl itself passes to every reward function is left aside.

    Raises:
        OptionError: an option that does not exist. A typing error must not train a run with the defaults.
    """
    return _options(tuple(sorted((key, value) for key, value in kwargs.items() if key not in _VERL_KWARGS)))


class _GoldMemory:
    """What the strict rule says of gold answers: a group asks of one many times. Bounded, and safe in threads."""

    def __init__(self, size: int = 8192):
        self._size = size
        self._problems: dict[str, str] = {}
        self._lock = threading.Lock()

    def problem(self, gold: str) -> str | None:
        """The problem, "" for none, or None when only a worker can tell."""
        problem = self._problems.get(gold)
        if problem is None:
            try:
                problem = gold_problem(gold, refuse_reading)
            except NeedsAlgebra:
                return None
            self.learn(gold, problem)
        return problem

    def learn(self, gold: str, problem: str) -> None:
        with self._lock:
            if len(self._problems) >= self._size:
                self._problems.clear()
            self._problems[gold] = problem


_golds = _GoldMemory()


def _judgement(response: Any, ground_truth: Any, options: MathOptions) -> _Judgement:
    """Judge one response: yields the tasks for workers that it needs, is sent their outcomes, returns the result."""
    golds, problem = gold_answers(ground_truth)
    if not golds:
        return Skip(problem)
    if not isinstance(response, str):
        return Score(0.0, "not_text")
    if options.mode == "lenient":
        if len(response) > MAX_RESPONSE_CHARS:
            return Score(0.0, "too_long")
        return (yield from _asked(_LENIENT, golds, response, ""))
    problems = [_golds.problem(gold) for gold in golds]
    if problems[0] and all(problems):
        return Skip(problems[0])
    answer = extract_boxed(response, options.answer_scope)
    if answer.reason:
        # Whether the gold answer is sound must not depend on the response, so an unknown one is looked at all the same.
        if "" in problems:
            return Score(0.0, answer.reason)
        result = yield from _asked(_STRICT, golds, "", "")
        return result if isinstance(result, Skip) else Score(0.0, answer.reason, seconds=result.seconds)
    if None not in problems:
        try:
            sound = [gold for gold, problem in zip(golds, problems, strict=True) if not problem]
            verdicts = [compare(gold, answer.text, refuse_algebra) for gold in sound]
        except NeedsAlgebra:
            pass
        else:
            same = any(verdict.same for verdict in verdicts)
            return Score(float(same), "" if same else verdicts[-1].reason, answer.text)
    return (yield from _asked(_STRICT, golds, answer.text, answer.text))


def _asked(function: str, golds: tuple[str, ...], subject: str, pred: str) -> _Judgement:
    """A comparison by a worker. A limit that it hits is the gold answer's fault if that hits it alone too."""
    ended: list[Outcome] = yield [(function, golds, subject)]
    outcome = ended[0]
    if outcome.kind is Kind.DONE:
        status, reason = outcome.value
        if status == "gold":
            return _faulty_golds(function, golds, reason, outcome)
        if len(golds) == 1 and function == _STRICT:
            _golds.learn(golds[0], "")
        return Score(float(status == "same"), reason, pred, seconds=outcome.seconds)
    if outcome.kind not in _RESPONSE_FAULTS:
        reason = {Kind.KILLED: "worker_killed"}.get(outcome.kind, outcome.kind.value)
        raised = outcome.kind is Kind.RAISED
        return Skip(f"checker_raised:{outcome.detail}" if raised else reason, pred, outcome.seconds)
    checks: list[Outcome] = yield [("reward_fns.algebra:check_gold", gold) for gold in golds]
    if all(check.kind in _RESPONSE_FAULTS or check.value for check in checks):
        return _faulty_golds(function, golds, "gold_unparsable", outcome)
    return Score(0.0, _RESPONSE_FAULTS[outcome.kind], pred, seconds=outcome.seconds)


def _faulty_golds(function: str, golds: tuple[str, ...], reason: str, outcome: Outcome) -> Skip:
    if function == _STRICT:  # math-verify reads other gold answers than the strict rule
        for gold in golds:
            _golds.learn(gold, reason)
    return Skip(reason, seconds=outcome.seconds)


def score_batch(responses: Sequence[Any], ground_truths: Sequence[Any], **options: Any) -> list[Score | Skip]:
    """Judge responses, each against its gold answer; the comparisons run side by side in the pool.

    Args:
        responses: what the model wrote; anything but a string is a malformed response.
        ground_truths: see `reward_fns.gold.gold_answers`.
        options: see MathOptions.

    Returns:
        One Score or Skip for each response, in order.

    Raises:
        OptionError: an unknown option.
        ResultError: every response is the bare answer of a solution given as its gold, so the two look swapped.
        ValueError: the two sequences differ in length.
    """
    if responses and all(_is_swapped(r, g) for r, g in zip(responses, ground_truths, strict=True)):
        raise ResultError("responses and gold answers look swapped: the order is score(response, ground_truth)")
    return _score_batch(responses, ground_truths, read_options(options))


def _score_batch(responses: Sequence[Any], ground_truths: Sequence[Any], settings: MathOptions) -> list[Score | Skip]:
    judgements = [_judgement(r, g, settings) for r, g in zip(responses, ground_truths, strict=True)]
    results: dict[int, Score | Skip] = {}
    ended: dict[int, list[Outcome] | None] = dict.fromkeys(range(len(judgements)))
    while ended:
        running: dict[int, list[Future[Outcome]]] = {}
        for place, outcomes in ended.items():
            try:
                running[place] = settings.submit(judgements[place].send(outcomes))
            except StopIteration as end:
                results[place] = end.value
        concurrent.futures.wait([future for futures in running.values() for future in futures])  # wakes once
        ended = {place: [future.result() for future in futures] for place, futures in running.items()}
    return [results[place] for place in range(len(judgements))]


def _is_swapped(response: Any, ground_truth: Any) -> bool:
    if not isinstance(response, str) or not isinstance(ground_truth, str) or len(response) > len(ground_truth) // 2:
        return False
    if after_thinking(response) != response:
        return False
    is_thought = after_thinking(ground_truth) != ground_truth
    return is_thought or (bool(response) and response.strip() == extract_boxed(ground_truth).text)


def score(response: Any, ground_truth: Any, **options: Any) -> Score | Skip:
    """Judge one response. See `score_batch`."""
    return score_batch([response], [ground_truth], **options)[0]


async def ascore(response: Any, ground_truth: Any, **options: Any) -> Score | Skip:
    """As `score`, for an event loop, which goes on running meanwhile."""
    settings = read_options(options)
    judgement = _judgement(response, ground_truth, settings)
    outcomes: list[Outcome] | None = None
    while True:
        try:
            futures = settings.submit(judgement.send(outcomes))
        except StopIteration as end:
            return end.value
        outcomes = [await asyncio.wrap_future(future) for future in futures]


def _deliver(result: Score | Skip | Fail, settings: MathOptions) -> dict[str, float | str]:
    return deliver(result, __name__, skip_share=settings.skip_share, on_skip=settings.on_skip)


def compute_score(
    data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any = None, **kwargs: Any
) -> dict[str, float | str]:
    """Judge one response, in the signature of a verl reward function; name it with `pkg://reward_fns.math`.

    Args:
        data_source: not used.
        solution_str: the decoded response, without the prompt.
        ground_truth: the gold answer, see `reward_fns.gold.gold_answers`.
        extra_info: not used.
        kwargs: see MathOptions; in a verl job they come from `reward.custom_reward_function.reward_kwargs`.

    Returns:
        The keys `reward_fns.result.VERL_KEYS`, always all of them.

    Raises:
        BudgetSpent: too many of the last samples could not be judged.
        SkipError: this one could not, and `on_skip` is `raise`.
        OptionError: an unknown option.
    """
    settings = read_options(kwargs)
    return _deliver(_score_batch([solution_str], [ground_truth], settings)[0], settings)


def compute_score_batch(
    data_sources: Sequence[Any],
    solution_strs: Sequence[Any],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Any] | None = None,
    **kwargs: Any,
) -> list[dict[str, float | str]]:
    """As `compute_score`, for a whole batch."""
    settings = read_options(kwargs)
    return [_deliver(result, settings) for result in score_batch(solution_strs, ground_truths, **vars(settings))]


async def compute_score_async(
    data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any = None, **kwargs: Any
) -> dict[str, float | str]:
    """As `compute_score`, a coroutine function: verl then judges many samples at a time without threads."""
    settings = read_options(kwargs)
    return _deliver(await ascore(solution_str, ground_truth, **vars(settings)), settings)
