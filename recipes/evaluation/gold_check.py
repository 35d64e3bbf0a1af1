"""Whether each gold answer of a benchmark is right when it is given as the answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from recipes.evaluation.problem import Problem
from reward_fns import multiple_choice
from reward_fns.check_dataset import check
from reward_fns.pool import Pool
from reward_fns.result import Score

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
