"""Grade the responses to a benchmark with `reward_fns`, and group equal answers for the majority vote."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from recipes.evaluation.mmlu_pro import LETTERS, guess_is_right
from recipes.evaluation.problem import Problem
from recipes.evaluation.sample_store import SampledResponse
from recipes.evaluation.stats import UNPARSABLE
from reward_fns import math, multiple_choice
from reward_fns.check_dataset import check
from reward_fns.majority import majority_vote
from reward_fns.pool import Pool
from reward_fns.result import Score

Kind = Literal["math", "multiple_choice"]
_CHUNK = 4096


@dataclass(frozen=True)
class Grade:
    """The judgement of one response.

    Attributes:
        status: "score", or "skip" when it could not be judged by no fault of its own.
        right: whether the answer equals the gold answer.
        reason: why it is what it is; "" for a plain right answer.
        answer: the answer that was judged.
        answer_class: responses with equal answers have the same; None without a usable answer.
    """

    status: str
    right: bool
    reason: str
    answer: str
    answer_class: str | None = None


def grade(
    kind: Kind,
    samples: Mapping[str, Sequence[SampledResponse]],
    golds: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    *,
    classes: bool = True,
    choices: Mapping[str, int] | None = None,
) -> dict[str, list[Grade]]:
    """Grade every response to every problem.

    Args:
        kind: how answers are read and compared.
        samples: responses by problem.
        golds: gold answer by problem.
        options: for "math" those of `reward_fns.math.MathOptions`, for "multiple_choice" those of
            `reward_fns.multiple_choice.score`.
        classes: also find the classes of equal answers, which maj@k needs.
        choices: number of options of each problem. With `guess` in the options, a response without a readable letter is
            right if MMLU-Pro's guess among them hits, and its reason is "guessed".
    """
    options = dict(options or {})
    guess = bool(options.pop("guess", False)) and choices is not None
    flat = [(problem, sample) for problem, found in samples.items() for sample in found]
    judged = []
    for start in range(0, len(flat), _CHUNK):
        judged += _judge(kind, flat[start : start + _CHUNK], golds, options)
    results: dict[str, list[Grade]] = {problem: [] for problem in samples}
    for (problem, _), result in zip(flat, judged, strict=True):
        scored = isinstance(result, Score)
        right, reason = scored and result.acc == 1.0, result.reason
        if guess and scored and not result.pred:
            right, reason = _guess(choices[problem], golds[problem]), "guessed"
        results[problem].append(Grade("score" if scored else "skip", right, reason, result.pred))
    if not classes:
        return results
    return {problem: _with_classes(kind, samples[problem], found, options) for problem, found in results.items()}


def _guess(options: int, gold: Any) -> bool:
    return guess_is_right(options, LETTERS.index(multiple_choice.gold_letter(gold, LETTERS)))


def _judge(kind: Kind, chunk: Sequence[tuple[str, SampledResponse]], golds: Mapping[str, Any], options: dict) -> list:
    if kind == "math":
        return math.score_batch([s.response for _, s in chunk], [golds[problem] for problem, _ in chunk], **options)
    return [multiple_choice.score(sample.response, golds[problem], **options) for problem, sample in chunk]


def _with_classes(kind: Kind, samples: Sequence[SampledResponse], grades: list[Grade], options) -> list[Grade]:
    if kind != "math":
        named = [grade.answer or None for grade in grades]
    else:
        # A response without an answer for the grader has none for the vote, which reads by other rules.
        readable = [i for i, grade in enumerate(grades) if grade.reason.partition(":")[0] not in UNPARSABLE]
        scope = (options or {}).get("answer_scope", "final")
        found = answer_classes([samples[i].response for i in readable], scope)
        classes = dict(zip(readable, found, strict=True))
        named = [classes.get(i) for i in range(len(samples))]
    return [
        Grade(grade.status, grade.right, grade.reason, grade.answer, name)
        for grade, name in zip(grades, named, strict=True)
    ]


def answer_classes(responses: Sequence[str], answer_scope: str = "final") -> list[str | None]:
    """The class of each response's answer, named by the first answer in it; None for a response without one."""
    names: list[str | None] = [None] * len(responses)
    left = list(range(len(responses)))
    while left:
        vote = majority_vote([responses[i] for i in left], min_answers=1, ties="earliest", answer_scope=answer_scope)
        if vote.winner is None:
            break
        name = vote.answers[vote.winner]
        won = {index for index, reward in zip(left, vote.rewards, strict=True) if reward}
        for index in won:
            names[index] = name
        left = [index for index, answer in zip(left, vote.answers, strict=True) if index not in won and answer]
    return names


def right_classes(grades: Iterable[Grade]) -> set[str]:
    """The classes that count as right: those whose first response is."""
    first: dict[str, bool] = {}
    for found in grades:
        if found.answer_class is not None:
            first.setdefault(found.answer_class, found.right)
    return {name for name, right in first.items() if right}


DEFAULT_LETTERS = "ABCDEFGHIJ"


def faulty_golds(
    kind: str, problems: Sequence[Problem], grading: Mapping[str, Any], workers: int = 2
) -> dict[str, str]:
    """The problems whose gold answer cannot serve, with the reason, by problem id; unlabelled ones are left out.

    Args:
        kind: "math" or "multiple_choice".
        grading: the benchmark's grading options; `letters` limits the options of a multiple choice.
    """
    labelled = [problem for problem in problems if problem.gold is not None]
    if kind == "multiple_choice":
        letters = grading.get("letters", DEFAULT_LETTERS)
        found = {problem.id: _choice_fault(problem, letters) for problem in labelled}
        return {problem: fault for problem, fault in found.items() if fault}
    # Many problems have the same answer, which needs one check.
    distinct = {repr(problem.gold): problem.gold for problem in labelled}
    with Pool(workers) as pool:
        offenders = check(list(distinct.values()), pool)
    names = list(distinct)
    faults = {names[offender.row]: offender.problem for offender in offenders}
    return {problem.id: faults[repr(problem.gold)] for problem in labelled if repr(problem.gold) in faults}


def _choice_fault(problem: Problem, letters: str) -> str:
    letter = multiple_choice.gold_letter(problem.gold, letters)
    if not letter:
        return f"gold {problem.gold!r} is no option"
    if problem.options and letters.index(letter) >= len(problem.options):
        return f"gold {letter} of {len(problem.options)} options"
    result = multiple_choice.score(f"The answer is ({letter}).", problem.gold, letters=letters)
    return "" if isinstance(result, Score) and result.value == 1.0 else f"scores against itself: {result.reason}"


GradeProblems = Callable[[Mapping[str, Sequence[SampledResponse]]], dict[str, list[Grade]]]


class RunningGrader:
    """Grades the problems of one benchmark one by one; close it at the end."""

    def __init__(self, grade_problems: GradeProblems):
        """`grade_problems` grades responses by problem; the problems must not depend on each other."""
        self._grade_problems = grade_problems
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grader")
        self._running: dict[str, Future] = {}

    def add(self, problem: str, samples: Sequence[SampledResponse]) -> None:
        """Queue the responses to a problem."""
        self._running[problem] = self._thread.submit(self._grade_problems, {problem: samples})

    def grades(self, samples: Mapping[str, Sequence[SampledResponse]]) -> dict[str, list[Grade]]:
        """The grades of all problems, in the order of `samples`; those never queued are graded now, together.

        Raises:
            Whatever `grade_problems` raises.
        """
        rest = {problem: found for problem, found in samples.items() if problem not in self._running}
        graded = self._grade_problems(rest) if rest else {}
        for problem in samples.keys() & self._running.keys():
            graded |= self._running[problem].result()
        return {problem: graded[problem] for problem in samples}

    def close(self) -> None:
        """Drop what is queued and let the thread end."""
        self._thread.shutdown(wait=True, cancel_futures=True)
