"""Score responses with a reward model that verl serves (``reward.reward_model.enable=true``), with bounded retries.

verl's own path asks for ever growing times and then loses the response. Set as the reward function
(``reward.custom_reward_function.path=pkg://recipes.core.served_reward_model``), this one gives up in time and skips
the response, so that the failure budget of ``algorithm.reward_faults`` decides.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError
from reward_fns.result import Result, Score, Skip


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
    """Score prompt and response with a served sequence classifier: its raw score, before any activation.

    Args:
        data_source, ground_truth: not used.
        solution_str: the response.
        extra_info: ``raw_prompt`` in it holds the prompt's chat messages; the reward manager puts it there.
        reward_router_address: host:port of verl's router, from the reward manager.
        reward_model_tokenizer: with the reward model's chat template, from the reward manager.
        timeout: seconds for one attempt.
        attempts: of a request that times out, meets a server error or gets junk; see `reward_fns.endpoint`. What the
            server refuses, as a conversation that is too long for it, is asked once.

    Returns:
        Score, or Skip with the reason when the model gave no finite number.

    Raises:
        ValueError: no reward model is served.
    """
    if reward_router_address is None or reward_model_tokenizer is None:
        raise ValueError("no reward model is served; set reward.reward_model.enable=true and its model_path")
    messages = [*extra_info["raw_prompt"], {"role": "assistant", "content": solution_str}]
    body = {"input": rendered(messages, reward_model_tokenizer), "use_activation": False}
    endpoint = _endpoint(f"http://{reward_router_address}", timeout, attempts)
    try:
        return Score(await endpoint.post("/classify", body, read_score))
    except EndpointError as error:
        return Skip(f"reward_model_{error.reason}: {error}")


def rendered(messages: Sequence[Mapping[str, str]], tokenizer: Any) -> str:
    """Render the conversation for the reward model; its engine adds the begin token itself."""
    text = tokenizer.apply_chat_template([dict(message) for message in messages], tokenize=False)
    return text.removeprefix(tokenizer.bos_token) if tokenizer.bos_token else text


def read_score(reply: Any) -> float:
    """Read the one finite score in a reply of `/classify`.

    Raises:
        ValueError, LookupError, TypeError: the reply holds something else.
    """
    probs = reply["data"][-1]["probs"]
    if len(probs) != 1:
        raise ValueError(f"expected one score, found {len(probs)}")
    if not math.isfinite(score := float(probs[0])):
        raise ValueError(f"the score is {score}")
    return score


@functools.cache
def _endpoint(root: str, timeout: float, attempts: int) -> Endpoint:
    """One client for all responses; its connections are kept between them. verl's router asks for no key."""
    return Endpoint(EndpointSettings(root, key_variable=None, timeout=timeout, attempts=attempts, max_wait=10.0))
