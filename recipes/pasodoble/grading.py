r"""Grade a response against the Proposer's answer.

The answer is the last closed ``\boxed{}`` of the whole response, thinking included, as in the original; what equals
what is decided by :mod:`reward_fns.math`, in processes that can be killed. The gold answer was written by a model, so
one that is no mathematics is a bad proposal that nothing agrees with, and no fault of the infrastructure.
"""

from typing import Any

from recipes.pasodoble.parsing import extract_answer
from reward_fns.math import ascore
from reward_fns.result import Score, Skip, to_verl

GOLD_FAULTS = ("gold_missing", "gold_unparsable")


class GradingError(RuntimeError):
    """The comparison itself failed, so nothing is known about the answers."""


async def grade(response: str, gold: str | None, **options: Any) -> Score | Skip:
    """Give a Score of 1 or 0, or a Skip when the grader could not work.

    Args:
        response: a completion; its boxed answer is compared.
        gold: the Proposer's answer; None or empty agrees with nothing.
        options: of :class:`reward_fns.math.MathOptions`.
    """
    answer = extract_answer(response, "reference")
    if not gold:
        return Score(0.0, "gold_missing", answer or "")
    if not answer:
        return Score(0.0, "no_answer")
    if answer == gold.strip():
        return Score(1.0, "", answer)
    # the original takes the last box that closes, also when one after it does not
    result = await ascore(f"\\boxed{{{answer}}}", gold, **({"answer_scope": "anywhere"} | options))
    if isinstance(result, Skip) and result.reason.partition(":")[0] in GOLD_FAULTS:
        return Score(0.0, result.reason, result.pred, seconds=result.seconds)
    return result


async def answers_agree(answer: str | None, gold: str | None) -> bool:
    """Whether two final answers mean the same; a missing one agrees with nothing.

    Raises:
        GradingError: if the grader could not work.
    """
    if not answer or not gold:
        return False
    result = await grade(f"\\boxed{{{answer}}}", gold)
    if isinstance(result, Skip):
        raise GradingError(f"two answers could not be compared: {result.reason}")
    return result.value > 0


async def compute_score(
    data_source: Any, solution_str: str, ground_truth: Any, extra_info: Any = None, **kwargs: Any
) -> dict[str, float | str]:
    """:func:`grade` in verl's signature, for ``reward.custom_reward_function``."""
    options = {key: value for key, value in kwargs.items() if not key.startswith("reward_")}
    return to_verl(await grade(solution_str, None if ground_truth is None else str(ground_truth), **options))
