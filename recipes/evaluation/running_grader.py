"""Grade each problem as its responses are finished, in a thread beside the engine, which decodes in its own process."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from recipes.evaluation.grading import Grade
from recipes.evaluation.sample_store import SampledResponse

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
