r"""Score an answer in mathematics: the function to name in a verl job, its batch and async forms.

`strict`, the default, is meant for training: the answer is what stands in the last closed `\boxed{}` after the
thinking, and it is compared by the written policy of README.md. `lenient` is meant for evaluation: math-verify with its
defaults on the whole response.
Either way nothing can hang: formulas are compared in worker processes with a time and a memory limit.
"""

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from reward_fns.equivalence import NeedsAlgebra, compare, gold_problem, refuse_algebra
from reward_fns.errors import OptionError, SkipError
from reward_fns.extract import MAX_RESPONSE_CHARS, AnswerScope, extract_boxed
from reward_fns.gold import gold_answers
from reward_fns.pool import Kind, Outcome, Pool, shared_pool
from reward_fns.result import Fail, FailureBudget, RunningBudget, Score, Skip, to_verl

Mode = Literal["strict", "lenient"]

_VERL_KWARGS = frozenset({"reward_router_address", "reward_model_tokenizer", "reward_model_name"})
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

    def __post_init__(self):
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


@functools.lru_cache(maxsize=64)
def _options(items: tuple[tuple[str, Any], ...]) -> MathOptions:
    given = dict(items)
    unknown = sorted(set(given) - set(MathOptions.__dataclass_fields__))
    if unknown:
        raise OptionError(f"unknown option {unknown}; known: {sorted(MathOptions.__dataclass_fields__)}")
    return MathOptions(**given)


def read_options(kwargs: dict[str, Any]) -> MathOptions:
    """The options in `reward_kwargs`; what verl itself passes to every reward function is left aside.

    Raises:
        OptionError: an option that does not exist. A typing error must not train a run with the defaults.
    """
    return _options(tuple(sorted((key, value) for key, value in kwargs.items() if key not in _VERL_KWARGS)))


@dataclass(frozen=True)
class _Pending:
    """A comparison that needs a worker."""

    function: str
    golds: tuple[str, ...]
    subject: str
    pred: str

    def submit(self, pool: Pool, time_limit: float) -> Future:
        return pool.submit(self.function, self.golds, self.subject, time_limit=time_limit)

    def check_golds(self, pool: Pool, time_limit: float) -> list[Future]:
        return [pool.submit("reward_fns.algebra:self_check", gold, time_limit=time_limit) for gold in self.golds]


class _GoldMemory:
    """What workers have said about gold answers: a group asks of one gold answer many times. Bounded; safe under
    threads.
    """

    def __init__(self, size: int = 8192):
        self._size = size
        self._problems: dict[str, str] = {}
        self._lock = threading.Lock()

    def problem(self, gold: str) -> str | None:
        """The problem, "" for none, or None when only a worker can tell."""
        known = self._problems.get(gold)
        if known is None:
            try:
                known = gold_problem(gold, _needs_worker)
            except NeedsAlgebra:
                return None
            self.learn(gold, known)
        return known

    def learn(self, gold: str, problem: str) -> None:
        with self._lock:
            if len(self._problems) >= self._size:
                self._problems.clear()
            self._problems[gold] = problem


def _needs_worker(_text: str) -> bool:
    raise NeedsAlgebra


_golds = _GoldMemory()


def _prepare(response: Any, ground_truth: Any, options: MathOptions) -> Score | Skip | _Pending:
    golds, problem = gold_answers(ground_truth)
    if not golds:
        return Skip(problem)
    if not isinstance(response, str):
        return Score(0.0, "not_text")
    if options.mode == "lenient":
        if len(response) > MAX_RESPONSE_CHARS:
            return Score(0.0, "too_long")
        return _Pending("reward_fns.algebra:judge_leniently", golds, response, "")
    known = {gold: _golds.problem(gold) for gold in golds}
    if all(known.values()):
        return Skip(known[golds[0]])
    answer = extract_boxed(response, options.answer_scope)
    if answer.reason:
        # Whether the gold answer is sound must not depend on the response, so an unknown one is looked at all the same.
        if None in known.values() and not any(problem == "" for problem in known.values()):
            return _Pending("reward_fns.algebra:judge", golds, "", answer.reason)
        return Score(0.0, answer.reason)
    if None not in known.values():
        try:
            verdicts = [compare(gold, answer.text, refuse_algebra) for gold in golds if not known[gold]]
        except NeedsAlgebra:
            pass
        else:
            same = any(verdict.same for verdict in verdicts)
            return Score(float(same), "" if same else verdicts[-1].reason, answer.text)
    return _Pending("reward_fns.algebra:judge", golds, answer.text, answer.text)


def _finish(pending: _Pending, outcome: Outcome) -> Score | Skip | None:
    """The result of a comparison; None when it hit a limit and it is open whose fault that was."""
    if outcome.kind is Kind.DONE:
        status, reason = outcome.value
        if status == "gold":
            for gold in pending.golds:
                _golds.learn(gold, reason)
            return Skip(reason, seconds=outcome.seconds)
        if len(pending.golds) == 1:
            _golds.learn(pending.golds[0], "")
        if not pending.subject:
            return Score(0.0, pending.pred, seconds=outcome.seconds)
        return Score(float(status == "same"), reason, pending.pred, seconds=outcome.seconds)
    if outcome.kind in _RESPONSE_FAULTS:
        return None
    reason = {Kind.KILLED: "worker_killed", Kind.POOL_DOWN: "pool_down", Kind.STARVED: "starved"}.get(outcome.kind)
    return Skip(reason or f"checker_raised:{outcome.detail}", pending.pred, outcome.seconds)


def _blame(pending: _Pending, outcome: Outcome, checks: Sequence[Outcome]) -> Score | Skip:
    """A limit was hit: the gold answer's fault if it hits it alone too, else the response's."""
    if checks and all(check.kind in _RESPONSE_FAULTS or check.value for check in checks):
        for gold in pending.golds:
            _golds.learn(gold, "gold_unparsable")
        return Skip("gold_unparsable", pending.pred, outcome.seconds)
    return Score(0.0, _RESPONSE_FAULTS[outcome.kind], pending.pred, seconds=outcome.seconds)


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
        ValueError: the two sequences differ in length.
    """
    settings = read_options(options)
    prepared = [_prepare(r, g, settings) for r, g in zip(responses, ground_truths, strict=True)]
    if not any(isinstance(item, _Pending) for item in prepared):
        return prepared
    pool = settings.pool()
    running = [
        (item, item.submit(pool, settings.time_limit)) if isinstance(item, _Pending) else (item, None)
        for item in prepared
    ]
    concurrent.futures.wait([future for _, future in running if future])  # wakes once
    results: list[Any] = []
    for item, future in running:
        outcome = future.result() if future else None
        result = _finish(item, outcome) if outcome else item
        results.append(result if result is not None else (item, outcome, item.check_golds(pool, settings.time_limit)))
    return [
        _blame(entry[0], entry[1], [check.result() for check in entry[2]]) if isinstance(entry, tuple) else entry
        for entry in results
    ]


def score(response: Any, ground_truth: Any, **options: Any) -> Score | Skip:
    """Judge one response. See `score_batch`."""
    return score_batch([response], [ground_truth], **options)[0]


async def ascore(response: Any, ground_truth: Any, **options: Any) -> Score | Skip:
    """As `score`, for an event loop, which goes on running meanwhile."""
    settings = read_options(options)
    item = _prepare(response, ground_truth, settings)
    if not isinstance(item, _Pending):
        return item
    pool = settings.pool()
    outcome = await asyncio.wrap_future(item.submit(pool, settings.time_limit))
    result = _finish(item, outcome)
    if result is not None:
        return result
    checks = [await asyncio.wrap_future(check) for check in item.check_golds(pool, settings.time_limit)]
    return _blame(item, outcome, checks)


_running_budgets: dict[float, RunningBudget] = {}


def _deliver(result: Score | Skip | Fail, settings: MathOptions) -> dict[str, float | str]:
    budget = _running_budgets.setdefault(
        settings.skip_share, RunningBudget(FailureBudget(settings.skip_share, min_count=16))
    )
    budget.add(result)
    if isinstance(result, Skip) and settings.on_skip == "raise":
        raise SkipError(result.reason)
    return to_verl(result)


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
    return _deliver(score(solution_str, ground_truth, **vars(settings)), settings)


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
