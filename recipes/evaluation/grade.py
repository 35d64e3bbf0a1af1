"""Grade the responses to a benchmark with `reward_fns`, and group equal answers for the majority vote."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from recipes.evaluation.benchmarks import Kind, Problem
from recipes.evaluation.mmlu_pro import LETTERS, guess_is_right
from recipes.evaluation.sample_store import SampledResponse, Samples
from reward_fns import math, multiple_choice
from reward_fns.check_dataset import check
from reward_fns.majority import majority_vote
from reward_fns.pool import Pool
from reward_fns.result import Score

# Responses judged in one call of the grader's pool.
_CHUNK = 4096
# Reasons with which a grader says that a response holds no answer it could read.
UNREAD = frozenset(
    "no_answer no_finish missing not_text no_box unclosed_box empty_box no_phrase empty_phrase only_thinking empty "
    "part_of_formula denied_box quoted_box several_boxes unparsable too_long too_deep too_many_digits".split()
)


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

    @property
    def unread(self) -> bool:
        """Whether the response holds no answer that the grader could read."""
        return self.reason.partition(":")[0] in UNREAD


def grade(
    kind: Kind,
    samples: Samples,
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
    flat = [(problem, sample.response) for problem, responses in samples.items() for sample in responses]
    results = []
    for start in range(0, len(flat), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        if kind == "math":
            results += math.score_batch([text for _, text in chunk], [golds[name] for name, _ in chunk], **options)
        else:
            results += [multiple_choice.score(text, golds[name], **options) for name, text in chunk]
    graded: dict[str, list[Grade]] = {problem: [] for problem in samples}
    for (problem, _), result in zip(flat, results, strict=True):
        scored = isinstance(result, Score)
        right, reason = scored and result.acc == 1.0, result.reason
        if guess and scored and not result.pred:
            gold = LETTERS.index(multiple_choice.gold_letter(golds[problem], LETTERS))
            right, reason = guess_is_right(choices[problem], gold), "guessed"
        graded[problem].append(Grade("score" if scored else "skip", right, reason, result.pred))
    if not classes:
        return graded
    scope = options.get("answer_scope", "final")
    return {problem: _with_classes(kind, samples[problem], grades, scope) for problem, grades in graded.items()}


def _with_classes(kind: Kind, samples: Sequence[SampledResponse], grades: list[Grade], scope: str) -> list[Grade]:
    if kind != "math":
        return [replace(grade, answer_class=grade.answer or None) for grade in grades]
    # A response without an answer for the grader has none for the vote, which reads by other rules.
    readable = [index for index, grade in enumerate(grades) if not grade.unread]
    names = dict(zip(readable, answer_classes([samples[i].response for i in readable], scope), strict=True))
    return [replace(grade, answer_class=names.get(index)) for index, grade in enumerate(grades)]


def answer_classes(responses: Sequence[str], answer_scope: str = "final") -> list[str | None]:
    """The class of each response's answer, named by the first answer in it; None for a response without one."""
    names: list[str | None] = [None] * len(responses)
    rest = list(range(len(responses)))
    while rest:
        vote = majority_vote([responses[i] for i in rest], min_answers=1, ties="earliest", answer_scope=answer_scope)
        if vote.winner is None:
            break
        members = {index for index, reward in zip(rest, vote.rewards, strict=True) if reward}
        for index in members:
            names[index] = vote.answers[vote.winner]
        rest = [i for i, answer in zip(rest, vote.answers, strict=True) if i not in members and answer]
    return names


def right_classes(grades: Iterable[Grade]) -> set[str]:
    """The classes that count as right: those whose first response is."""
    first: dict[str, bool] = {}
    for grade in grades:
        if grade.answer_class is not None:
            first.setdefault(grade.answer_class, grade.right)
    return {name for name, right in first.items() if right}


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
        faults = {problem.id: _choice_problem(problem, grading.get("letters", LETTERS)) for problem in labelled}
        return {name: fault for name, fault in faults.items() if fault}
    # Many problems have the same answer, which needs one check.
    distinct = {repr(problem.gold): problem.gold for problem in labelled}
    with Pool(workers) as pool:
        offenders = check(list(distinct.values()), pool)
    faults = {list(distinct)[offender.row]: offender.problem for offender in offenders}
    return {problem.id: faults[repr(problem.gold)] for problem in labelled if repr(problem.gold) in faults}


def _choice_problem(problem: Problem, letters: str) -> str | None:
    letter = multiple_choice.gold_letter(problem.gold, letters)
    if not letter:
        return f"gold {problem.gold!r} is no option"
    if problem.options and letters.index(letter) >= len(problem.options):
        return f"gold {letter} of {len(problem.options)} options"
    return None


class RunningGrader:
    """Grades the problems of one benchmark one by one, in a thread beside the engine; close it at the end.

    Args:
        grade_problems: grades responses by problem; the problems must not depend on each other.
    """

    def __init__(self, grade_problems: Callable[[Samples], dict[str, list[Grade]]]):
        self._grade_problems = grade_problems
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grader")
        self._running: dict[str, Future] = {}

    def add(self, problem: str, samples: Sequence[SampledResponse]) -> None:
        """Queue the responses to a problem."""
        self._running[problem] = self._thread.submit(self._grade_problems, {problem: samples})

    def grades(self, samples: Samples) -> dict[str, list[Grade]]:
        """The grades of all problems, in the order of `samples`; those never queued are graded now, together.

        Raises:
            Whatever `grade_problems` raises.
        """
        rest = {problem: responses for problem, responses in samples.items() if problem not in self._running}
        graded = self._grade_problems(rest) if rest else {}
        for problem in samples.keys() & self._running.keys():
            graded |= self._running[problem].result()
        return {problem: graded[problem] for problem in samples}

    def close(self) -> None:
        """Drop what is queued and let the thread end."""
        self._thread.shutdown(wait=True, cancel_futures=True)
