"""Completions that an OpenAI-compatible endpoint wrote, with the token ids and log-probs that vLLM's server gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Completion:
    """One text that a model wrote.

    Attributes:
        finish_reason: `stop`, `length`, or the endpoint's own word.
        stop_reason: the stop text or token that ended it, where vLLM's server says so.
        token_ids: its tokens, where `return_token_ids=True` was asked of a vLLM server.
        log_probs: log-probability of each token in nats, where `logprobs` was asked for.
        reasoning: what a server with a reasoning parser took out of the text.
        refused: whether the model or a filter declined to answer.
    """

    text: str
    finish_reason: str = "stop"
    stop_reason: str | int | None = None
    token_ids: tuple[int, ...] | None = None
    log_probs: tuple[float, ...] | None = None
    reasoning: str | None = None
    refused: bool = False


@dataclass(frozen=True)
class Answer:
    """Completions of one prompt, in order, and the number of tokens where the endpoint gives it."""

    completions: list[Completion]
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    @property
    def texts(self) -> list[str]:
        """The texts alone."""
        return [completion.text for completion in self.completions]


def read_answer(reply: Any) -> Answer:
    """The completions in a reply of `/v1/completions` or `/v1/chat/completions`.

    Raises:
        ValueError, LookupError, TypeError: the reply holds none.
    """
    choices = sorted(reply["choices"], key=lambda choice: choice.get("index", 0))
    if not choices:
        raise ValueError("an answer without choices")
    usage = reply.get("usage") or {}
    return Answer(
        [_completion(choice) for choice in choices], usage.get("prompt_tokens"), usage.get("completion_tokens")
    )


def _completion(choice: Mapping[str, Any]) -> Completion:
    message = choice["message"] if "message" in choice else choice
    text = (message.get("content") or "") if "message" in choice else choice["text"]
    if not isinstance(text, str):
        raise TypeError(f"expected a text, found {text!r:.80}")
    log_probs = choice.get("logprobs") or {}
    values = log_probs.get("token_logprobs")
    if log_probs.get("content") is not None:
        values = [token["logprob"] for token in log_probs["content"]]
    token_ids = choice.get("token_ids")
    thinking = message.get("reasoning_content") or message.get("reasoning")
    return Completion(
        text,
        str(choice.get("finish_reason")),
        choice.get("stop_reason"),
        None if token_ids is None else tuple(token_ids),
        None if values is None else tuple(values),
        thinking if isinstance(thinking, str) and thinking else None,
        bool(message.get("refusal")) or choice.get("finish_reason") == "content_filter",
    )
