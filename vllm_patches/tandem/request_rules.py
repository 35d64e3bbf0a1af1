"""Check whether a tandem engine can serve a request; used by the front end and, as a second line, by the scheduler."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence

from vllm import SamplingParams

from vllm_patches.tandem.boundaries import BoundarySets
from vllm_patches.tandem.config import (
    CONFIG_KEY,
    WORKER,
    RequestSettings,
    TandemConfig,
    check_request,
    names_in_line,
    read_tokenizer,
    request_settings,
    vocab_size,
)
from vllm_patches.tandem.engine_checks import TandemRefusedError, check_request_settings, resolve_mode

# Sampling parameters that the speculative mode cannot honour at the junior's tokens, each refused by name.
REMEDY = "send the request without it, or to an engine in mode 'lazy'"


def fault_of(params: SamplingParams) -> str | None:
    """A sentence for a request that the speculative mode cannot serve, else None.

    A junior's token is sampled before the text it follows is known to the host, and nobody checks it afterwards; what
    depends on the tokens before it, or on a grammar, would hold for the senior's tokens alone.
    """
    refused = {
        "presence_penalty": params.presence_penalty != 0,
        "frequency_penalty": params.frequency_penalty != 0,
        "repetition_penalty": params.repetition_penalty != 1,
        "bad_words": bool(params.bad_words),
        "allowed_token_ids": params.allowed_token_ids is not None,
        "logit_bias": bool(params.logit_bias),
        "min_p": params.min_p > 0,
        "structured_outputs": params.structured_outputs is not None,
        "logprob_token_ids": bool(params.logprob_token_ids),
        "thinking_token_budget": params.thinking_token_budget is not None,
    }
    unsupported = [name for name, given in refused.items() if given]
    return f"the speculative mode takes no {', '.join(unsupported)}; {REMEDY}" if unsupported else None


class RequestRules:
    """The rules of one engine.

    Args:
        vllm_config: the engine's configuration, with a ``tandem`` section in ``additional_config``.

    Raises:
        TandemRefusedError: the engine has a worker of another kind, which decodes with the senior alone.
    """

    def __init__(self, vllm_config) -> None:
        _check_worker(vllm_config.parallel_config.worker_cls)
        self.config = TandemConfig.from_mapping(vllm_config.additional_config[CONFIG_KEY])
        self.mode = resolve_mode(self.config, vllm_config)
        self._model_config = vllm_config.model_config

    def check(self, request, from_client: bool = False) -> RequestSettings:
        """The request's settings.

        Args:
            request: vLLM's ``EngineCoreRequest`` or ``Request``.
            from_client: it is not yet split into its ``n`` responses.

        Raises:
            ValueError: this engine cannot serve the request; a sentence says why.
        """
        params = request.sampling_params
        if request.resumable:
            raise ValueError("tandem decoding takes no streaming input; send the whole prompt")
        if params is None or request.prompt_token_ids is None:
            raise ValueError("tandem decoding takes token ids and sampling parameters, no embeddings and no pooling")
        if from_client:
            check_responses(params)
        extras = params.extra_args or {}
        if misspelt := next((name for name in extras if name != CONFIG_KEY == name.casefold()), None):
            raise ValueError(f"extra_args has {misspelt!r}, and the settings of a request stand under {CONFIG_KEY!r}")
        extra = extras.get(CONFIG_KEY)
        settings = request_settings(self.config, extra, request.prompt_token_ids, params.seed)
        check_request_settings(settings, self.mode, params.structured_outputs is not None)
        if self.mode == "speculative":
            self._check_speculative(params, len(request.prompt_token_ids))
        self._check_ids(request.prompt_token_ids, params)
        kind = settings.params.strategy.boundary
        # An engine does not start without the set that its own strategy reads.
        if kind not in (None, self.config.defaults.strategy.boundary) and not self._boundaries.of(kind):
            raise ValueError(
                f"selection_strategy {settings.params.selection_strategy!r} reads {kind} boundaries, and no token of "
                f"this engine's tokenizer is one; choose another strategy, or start the engine with boundary_token_ids "
                "for it"
            )
        return settings

    def _check_ids(self, prompt: Sequence[int], params) -> None:
        """Every id must have a row in what reads it: one that has none ends the engine, for every client of it."""
        senior = self._model_config.get_vocab_size()
        lists = {
            "the prompt": (prompt, min(senior, self._junior_vocab_size)),
            "stop_token_ids": (params.stop_token_ids or (), senior),
            "allowed_token_ids": (params.allowed_token_ids or (), senior),
            "logit_bias": (params.logit_bias or (), senior),
        }
        for name, (ids, size) in lists.items():
            if wrong := next((token for token in ids if not 0 <= token < size), None):
                owner = "the senior's" if size == senior else "the junior's"
                raise ValueError(f"{name} holds token id {wrong}, and {owner} vocabulary ends at {size - 1}")

    def _check_speculative(self, params, prompt_length: int) -> None:
        fault = fault_of(params)
        if fault:
            raise ValueError(fault)
        limit = self._model_config.max_model_len - 2
        if prompt_length > limit:
            raise ValueError(
                f"the prompt has {prompt_length} tokens, and in the speculative mode at most {limit} fit with a token "
                "to generate (max_model_len - 2)"
            )

    @functools.cached_property
    def _junior_vocab_size(self) -> int:
        return vocab_size(self.config)

    @functools.cached_property
    def _boundaries(self) -> BoundarySets:
        tokenizer = read_tokenizer(self.config, self._model_config.model, self._model_config.tokenizer)
        return self.config.boundary_sets(tokenizer, len(tokenizer))


def check_responses(sampling_params: SamplingParams) -> None:
    """Raise ValueError for faulty settings, or for several responses that would have the same authors."""
    settings = check_request((sampling_params.extra_args or {}).get(CONFIG_KEY))
    if sampling_params.n > 1 and (sampling_params.seed is None or "request" in settings):
        raise ValueError(
            f"n is {sampling_params.n}, and all responses would draw the same author coins; set "
            "SamplingParams.seed and leave 'request' out, or send each response as a request of its own"
        )
    if sampling_params.n > 1 and sampling_params.seed < 0 <= sampling_params.seed + sampling_params.n:
        raise ValueError(
            f"seed is {sampling_params.seed} and n is {sampling_params.n}: vLLM counts the seed up over the responses "
            "and takes -1 for none; start from another seed"
        )


def _check_worker(worker_cls: str | type) -> None:
    if worker_cls == WORKER:
        return
    if isinstance(worker_cls, str):
        module, _, name = worker_cls.rpartition(".")
        worker_cls = getattr(importlib.import_module(module), name) if module else worker_cls
    if WORKER not in names_in_line(worker_cls):
        raise TandemRefusedError(
            f"worker_cls is {worker_cls}, and an engine with a tandem section takes {WORKER}: pass all that "
            "engine_arguments returns, or its flags"
        )
