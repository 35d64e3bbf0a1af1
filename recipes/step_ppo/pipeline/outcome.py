"""Whether responses give the right answer: one function for labels, pairs and trajectories."""

from collections.abc import Sequence

from recipes.step_ppo.pipeline.data import Question
from reward_fns import math, multiple_choice
from reward_fns.result import Score, Skip


def judge(question: Question, responses: Sequence[str]) -> list[Score | Skip]:
    """A Score of 1 or 0 with its reason for each response, or a Skip when the gold answer or the checker is at fault.

    Multiple choice: exactly one capital letter A-D behind the first `Finish`, equal to the gold one (LPR code).
    Maths: the final box, checked for equivalence.
    """
    if question.style == "react":
        return [multiple_choice.score(text, question.gold, style="finish", letters="ABCD") for text in responses]
    return math.score_batch(responses, [question.gold] * len(responses))


def correct(result: Score) -> bool:
    """Whether a judged response is right."""
    return result.acc > 0
