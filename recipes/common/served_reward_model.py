"""The score of a reward model that verl serves (``reward.reward_model.enable=true``), with bounded retries.

verl's own path asks for ever growing times and then loses the response. Set as the reward function
(``reward.custom_reward_function.path=pkg://recipes.common.served_reward_model``), this one gives up in time and skips
the response, so that the failure budget of ``algorithm.reward_faults`` decides.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential, wait_random

from reward_fns.result import Result, Score, Skip

RETRIED_CLIENT_ERRORS = (408, 409, 425, 429)


class _Unusable(Exception):
    """An answer that another attempt may better."""


class _Refused(Exception):
    """An answer that every attempt would get."""


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, Any],
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
    *,
    timeout: float = 60.0,
    attempts: int = 4,
) -> Result:
    """The raw score (before any activation) that a sequence classifier gives to prompt and response.

    Args:
        data_source, ground_truth: not used.
        solution_str: the response.
        extra_info: ``raw_prompt`` in it holds the prompt's chat messages; the reward manager puts it there.
        reward_router_address: host:port of verl's router, from the reward manager.
        reward_model_tokenizer: with the reward model's chat template, from the reward manager.
        timeout: seconds for one attempt.
        attempts: of a request that times out, meets a server error or gets junk, with growing pauses. What the server
            refuses, as a conversation that is too long for it, is asked once.

    Returns:
        Score, or Skip with the reason when the model gave no finite number.

    Raises:
        ValueError: no reward model is served.
    """
    if reward_router_address is None or reward_model_tokenizer is None:
        raise ValueError("no reward model is served; set reward.reward_model.enable=true and its model_path")
    messages = [*extra_info["raw_prompt"], {"role": "assistant", "content": solution_str}]
    body = {"input": rendered(messages, reward_model_tokenizer), "use_activation": False}
    url = f"http://{reward_router_address}/classify"
    retrying = AsyncRetrying(
        stop=stop_after_attempt(attempts),
        wait=wait_exponential(multiplier=0.5, max=10) + wait_random(0, 1),
        retry=retry_if_exception_type((_Unusable, aiohttp.ClientError, TimeoutError)),
        reraise=True,
    )
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout)) as session:
            return Score(await retrying(_ask, session, url, body))
    except (_Unusable, _Refused, aiohttp.ClientError, TimeoutError) as error:
        return Skip(f"reward_model: {type(error).__name__.strip('_')}: {error}")


def rendered(messages: Sequence[Mapping[str, str]], tokenizer: Any) -> str:
    """The conversation as the reward model reads it; its engine adds the begin token itself."""
    text = tokenizer.apply_chat_template([dict(message) for message in messages], tokenize=False)
    return text.removeprefix(tokenizer.bos_token) if tokenizer.bos_token else text


async def _ask(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> float:
    async with session.post(url, json=body) as answer:
        if answer.status != 200:
            kind = _Refused if 400 <= answer.status < 500 and answer.status not in RETRIED_CLIENT_ERRORS else _Unusable
            raise kind(f"status {answer.status}: {(await answer.text())[:200]}")
        reply = await answer.json(content_type=None)
    try:
        (score,) = reply["data"][-1]["probs"]
        score = float(score)
    except (LookupError, TypeError, ValueError) as error:
        raise _Unusable(f"expected one score in data[-1].probs, got {str(reply)[:200]}") from error
    if not math.isfinite(score):
        raise _Unusable(f"the score is {score}")
    return score
