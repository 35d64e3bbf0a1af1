"""Get win rates from a pairwise judge, as a group hook: the paper's general preference in the place of a scalar reward.

With K responses to a prompt, the judge compares every pair in both orders, the two verdicts are averaged, and the
mean of a response's row, itself included with 1/2, is its estimated win rate P_hat(y > pi_t) (SPPO paper, section 4).
The hook writes it as the reward; with ``scope=prompt``, ``score=reward`` and ``baseline=half`` the estimator's target
is then eta (P_hat - 1/2), eq. 4.7. Unlike a Bradley-Terry model on scalar scores, the preference may be intransitive.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from recipes.core.groups import Group
from reward_fns.judge import Judge, JudgeOptions, win_rates
from reward_fns.result import Fail, Score, Skip

KEY_VARIABLE = "JUDGE_API_KEY"


def judge_win_rates(groups: Sequence[Group], *, base_url: str, model: str, **limits: Any) -> dict[str, float]:
    """Replace each response's result by its win rate among the responses to its prompt.

    Args:
        groups: the groups of a step; a response that the reward manager skipped stays skipped and is not compared.
        base_url: of an OpenAI-compatible endpoint, ending in ``/v1``; its key comes from ``JUDGE_API_KEY``.
        model: name of the served model.
        limits: the other fields of ``reward_fns.judge.JudgeOptions``.

    Returns:
        ``sppo/judged_share``, the share of compared responses that got a win rate.
    """
    options = JudgeOptions(base_url, model, api_key=os.environ.get(KEY_VARIABLE, "none"), **limits)
    return asyncio.run(_judge_all(groups, options))


async def _judge_all(groups: Sequence[Group], options: JudgeOptions) -> dict[str, float]:
    judge = Judge(options)
    try:
        counts = await asyncio.gather(*(_judge_group(judge, group) for group in groups))
    finally:
        await judge.close()
    judged, compared = map(sum, zip(*counts, strict=True)) if counts else (0, 0)
    return {"sppo/judged_share": judged / compared if compared else 0.0}


async def _judge_group(judge: Judge, group: Group) -> tuple[int, int]:
    samples = [sample for sample in group.samples if isinstance(sample.result, Score)]
    question = _question(samples[0].fields) if samples else ""
    rates: Sequence[float | Skip | Fail]
    try:
        rates = win_rates(await judge.preference_matrix(question, [sample.response for sample in samples]))
    except RuntimeError as error:
        # the endpoint refuses every request
        rates = [Fail(str(error))] * len(samples)
    judged = 0
    for sample, rate in zip(samples, rates, strict=True):
        if isinstance(rate, Skip | Fail):
            sample.result = rate
        elif isinstance(sample.result, Score):
            sample.result = Score(rate, acc=sample.result.acc, pred=sample.result.pred)
            judged += 1
    return judged, len(samples)


def _question(fields: Mapping[str, Any]) -> str:
    messages = list(fields.get("raw_prompt") or [])
    return "\n\n".join(str(message["content"]) for message in messages if message.get("role") == "user")
