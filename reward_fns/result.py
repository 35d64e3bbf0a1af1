"""What judging one response comes to: a Score, a Skip or a Fail, and the one set of keys that reaches verl.

The rule. A fault of the response (it takes too long to check, too much memory, cannot be parsed, is malformed) is a
Score of 0 with a reason: were it skipped, a policy would learn to escape its zeros. A fault of the infrastructure (an
endpoint, the pool, a missing or unparsable gold answer, a reward function that raises or returns no number) is a Skip:
a zero would train the model on noise. When more of a batch is skipped than the budget allows, it is a Fail, and the run
stops with the reason.
"""

import math
import numbers
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from reward_fns.errors import BudgetSpent, OptionError, ResultError, SkipError

VERL_KEYS = ("score", "acc", "status", "reason", "pred", "seconds", "skipped")
"""The keys of `to_verl`, always all of them: verl takes the keys of a batch from its first row."""

STEP_SCORES = "step_scores"  # beside them in what a function returns; a list, which verl's metrics do not take
MAX_PRED_CHARS = 256
MAX_REASON_CHARS = 500


def printable(text: Any, limit: int) -> str:
    """A bounded string that any encoder takes: lone surrogates and control characters are replaced. Not a
    string: ""."""
    if not isinstance(text, str):
        return ""
    cut = str.__str__(text)[:limit]
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in cut)


@dataclass(frozen=True, slots=True)
class Score:
    """A judged response.

    Args:
        value: the reward, a finite number.
        reason: why it is what it is; "" for a plain right answer. A short token that metrics can count.
        pred: the answer that was judged, for logs; cut to 256 characters.
        acc: 1.0 or 0.0, right or wrong; default: whether `value` is positive.
        seconds: wall-clock seconds of the check.
        step_scores: one finite number per reasoning step, for the recipes that train on steps.

    Raises:
        ResultError: a value, acc or step score that is not a finite number.
    """

    value: float
    reason: str = ""
    pred: str = ""
    acc: float | None = None
    seconds: float = 0.0
    step_scores: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        value = _finite(self.value)
        acc = float(value is not None and value > 0) if self.acc is None else _finite(self.acc)
        if value is None or acc is None:
            raise ResultError(f"a Score needs finite numbers, got a value of type {type(self.value).__name__}")
        _set_text(self)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "acc", acc)
        if self.step_scores is not None:
            steps = _all_finite(self.step_scores)
            if steps is None:
                raise ResultError("step_scores must be a sequence of finite numbers")
            object.__setattr__(self, "step_scores", steps)

    def __bool__(self) -> bool:
        return self.value > 0


@dataclass(frozen=True, slots=True)
class _Unjudged:
    reason: str
    pred: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        _set_text(self)

    def __bool__(self) -> bool:
        raise ResultError(f"a {type(self).__name__} is neither right nor wrong ({self.reason}): ask for its type")


class Skip(_Unjudged):
    """A response that could not be judged, by no fault of its own. It leaves baseline, mean, vote and loss."""

    __slots__ = ()


class Fail(_Unjudged):
    """The run must stop, for this reason."""

    __slots__ = ()


Result = Score | Skip | Fail


def _set_text(result: Score | _Unjudged) -> None:
    object.__setattr__(result, "reason", printable(result.reason, MAX_REASON_CHARS))
    object.__setattr__(result, "pred", printable(result.pred, MAX_PRED_CHARS))
    object.__setattr__(result, "seconds", _finite(result.seconds) or 0.0)


def _finite(raw: Any) -> float | None:
    """The finite float that `raw` stands for, else None. numpy and torch scalars come through `item()`."""
    try:
        if not isinstance(raw, numbers.Number) and callable(getattr(raw, "item", None)):
            raw = raw.item()
        if isinstance(raw, numbers.Real | Decimal):
            value = float(raw)
            return value if math.isfinite(value) else None
    except Exception:
        # Foreign objects may raise anything from these calls; whatever it was, there is no number here.
        return None
    return None


def _all_finite(raw: Any) -> tuple[float, ...] | None:
    """The finite floats of a list, a tuple or an array of one dimension, else None."""
    try:
        values = [_finite(one) for one in (raw.tolist() if hasattr(raw, "tolist") else raw)]
    except Exception:
        # A user's object may raise anything; there are no numbers here.
        return None
    return None if None in values else tuple(value for value in values if value is not None)


def normalise(raw: Any) -> Result:
    """The result that a user's reward function meant. Never raises, never prints what it was given.

    A finite number, a bool, a numpy or torch scalar is a Score. A mapping must hold `score` (or be what `to_verl`
    made); `reason`, `pred`, `acc`, `seconds` and `step_scores` are taken along, other keys are dropped. None is a Skip,
    as in TRL. NaN and infinity are a Skip too: they say that the reward code failed to compute, not that the response
    is wrong, and no response can produce one through the functions of this package. Anything else (a string, a list,
    an object) is a Skip that names its type.
    """
    if isinstance(raw, Score | Skip | Fail):
        return raw
    if raw is None:
        return Skip("none")
    if isinstance(raw, Mapping):
        return _from_mapping(raw)
    value = _finite(raw)
    if value is not None:
        return Score(value)
    if isinstance(raw, numbers.Number) or callable(getattr(type(raw), "item", None)):
        return Skip("not_finite")
    return Skip(f"not_a_number:{type(raw).__name__}")


def _from_mapping(raw: Mapping) -> Result:
    try:
        fields = {key: raw.get(key) for key in (*VERL_KEYS, STEP_SCORES)}
    except Exception as error:
        return Skip(f"not_a_number:{type(error).__name__}")
    if isinstance(fields["status"], str) and fields["status"] in ("score", "skip", "fail"):
        return _read(fields)
    if fields["score"] is None:
        return Skip("none" if "score" in raw else "no_score_key")
    result = normalise(fields["score"]) if not isinstance(fields["score"], Mapping) else Skip("not_a_number:dict")
    return _read({**fields, "status": "score"}) if isinstance(result, Score) else result


def to_verl(result: Result) -> dict[str, float | str]:
    """The result as verl's reward loop carries it: always the keys VERL_KEYS, floats and strings only.

    A Skip or Fail has `score` 0.0, because verl needs a number there, and is told apart by `status` and by `skipped`
    (1.0), whose mean verl's validation reports; our reward manager and group hook take it out of the group.
    """
    if not isinstance(result, Score | Skip | Fail):
        raise ResultError(
            f"expected a Score, Skip or Fail, found {type(result).__name__}; pass it through normalise() first"
        )
    return {
        "score": result.value if isinstance(result, Score) else 0.0,
        "acc": (result.acc or 0.0) if isinstance(result, Score) else 0.0,
        "status": type(result).__name__.lower(),
        "reason": result.reason,
        "pred": result.pred,
        "seconds": result.seconds,
        "skipped": 0.0 if isinstance(result, Score) else 1.0,
    }


def from_verl(fields: Mapping[str, Any]) -> Result:
    """The result that `to_verl` wrote.

    Raises:
        ResultError: keys are missing or `status` is unknown, so this did not come from `to_verl`.
    """
    missing = [key for key in VERL_KEYS if key not in fields]
    if missing:
        raise ResultError(
            f"not a result of this package: the keys {missing} are missing, found {sorted(map(str, fields))[:20]}"
        )
    return _read(fields)


def _read(fields: Mapping[str, Any]) -> Result:
    status, seconds = fields["status"], _finite(fields["seconds"]) or 0.0
    if status == "score":
        value = _finite(fields["score"])
        if value is None:
            return Skip("not_finite", fields["pred"] or "", seconds)
        steps = fields.get(STEP_SCORES)
        if steps is not None and (steps := _all_finite(steps)) is None:
            return Skip("step_scores_not_finite", fields["pred"] or "", seconds)
        return Score(value, fields["reason"] or "", fields["pred"] or "", _finite(fields["acc"]), seconds, steps)
    if status not in ("skip", "fail"):
        raise ResultError(f"unknown status {printable(status, 40)!r}: expected score, skip or fail")
    return (Skip if status == "skip" else Fail)(fields["reason"] or "", fields["pred"] or "", seconds)


def count_reasons(results: Iterable[Result]) -> Counter[str]:
    """How often each `status/reason` occurs; a detail after a colon in a reason is left out so that keys stay few."""
    counts: Counter[str] = Counter()
    for result in results:
        counts[f"{type(result).__name__.lower()}/{result.reason.partition(':')[0] or 'ok'}"] += 1
    return counts


@dataclass(frozen=True)
class FailureBudget:
    """How much of a batch may be skipped before the run must stop.

    Args:
        share: largest share of skipped results, in [0, 1]; a batch with exactly this share still passes.
        min_count: fewer skips than this never fail, so that one fault in a batch of four does not stop a run.

    Raises:
        OptionError: share outside [0, 1] or min_count below 1.
    """

    share: float = 0.1
    min_count: int = 1

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0 or self.min_count < 1:
            raise OptionError(f"expected share in [0, 1] and min_count >= 1, got {self.share} and {self.min_count}")

    def verdict(self, results: Iterable[Result]) -> Fail | None:
        """Fail when the batch holds a Fail or too many Skips, with counts by reason; else None."""
        results = list(results)
        failed = next((result for result in results if isinstance(result, Fail)), None)
        if failed is not None:
            return failed
        skips = [result for result in results if isinstance(result, Skip)]
        if len(skips) < self.min_count or len(skips) <= self.share * len(results):
            return None
        causes = Counter(skip.reason for skip in skips).most_common(5)
        return Fail(
            f"{len(skips)} of {len(results)} samples could not be judged ({len(skips) / len(results):.1%}, "
            f"the budget is {self.share:.1%}): " + ", ".join(f"{reason} x{count}" for reason, count in causes)
        )

    def require(self, results: Iterable[Result]) -> None:
        """Raise BudgetSpent with the reason when `verdict` is a Fail."""
        fail = self.verdict(results)
        if fail is not None:
            raise BudgetSpent(fail.reason)


class RunningBudget:
    """A FailureBudget over the last `window` results, or those of one batch where it has more.

    A small batch is too little to tell an accident from a grader that is down, and a stock verl job shows no batch to a
    reward function. Safe to call from threads.
    """

    def __init__(self, budget: FailureBudget, window: int = 256):
        self.budget, self.window = budget, max(window, budget.min_count)
        self._recent: list[Result] = []
        self._lock = threading.Lock()

    def require(self, results: Iterable[Result]) -> None:
        """Count a batch.

        Raises:
            BudgetSpent: there is a Fail, or the share of Skips is over the budget.
        """
        self.budget.require(self._extended(list(results)))

    def _extended(self, results: list[Result]) -> list[Result]:
        with self._lock:
            self._recent = [*self._recent, *results][-max(self.window, len(results)) :]
            return self._recent

    def add(self, result: Result) -> None:
        """Count one result.

        Raises:
            BudgetSpent: it is a Fail, or the share of Skips among the recent results is over the budget.
        """
        recent = self._extended([result])
        if not isinstance(result, Score):
            self.budget.require(recent)


_running_budgets: dict[tuple[str, float], RunningBudget] = {}


def deliver(result: Result, function: str, *, skip_share: float = 0.1, on_skip: str = "mark") -> dict[str, float | str]:
    """What a reward function of this package returns to a job that knows no Skip: the fields of `to_verl`.

    Args:
        function: whose results are counted together, in this process.
        skip_share: of the last 256 results that may be skipped; fewer than 16 skips never count as too many.
        on_skip: `mark` gives a 0 marked by `status` and `skipped`, `raise` raises `SkipError`.

    Raises:
        BudgetSpent: too many of the last results are skips, or this one is a Fail.
        SkipError: this one is a skip and `on_skip` is `raise`.
    """
    key = (function, skip_share)
    budget = _running_budgets.setdefault(key, RunningBudget(FailureBudget(skip_share, min_count=16)))
    budget.add(result)
    if isinstance(result, Skip) and on_skip == "raise":
        raise SkipError(result.reason)
    return to_verl(result)
