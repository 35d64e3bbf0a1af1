"""Whether a response gives the right answer: one function for labels, pairs, rewards and evaluation."""

from recipes.step_ppo.data import Question
from reward_fns.result import Result, Score, Skip, normalise


def judge(question: Question, response: str) -> Result:
    """A Score of 1 or 0 with its reason, or a Skip when the gold answer or the checker is at fault.

    Multiple choice: exactly one capital letter A-D behind the first `Finish`, equal to the gold one. Maths: the
    final box, checked for equivalence.
    """
    if not question.gold:
        return Skip("no_gold_answer")
    if question.style == "react":
        from reward_fns import multiple_choice

        return normalise(multiple_choice.compute_score(question.data_source, response, question.gold))
    from reward_fns import math

    return normalise(math.compute_score(question.data_source, response, question.gold))


def correct(result: Score) -> bool:
    """Whether a judged response is right."""
    return result.acc > 0
