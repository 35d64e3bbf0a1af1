"""What the front end of a tandem engine needs: the mask on the output, the V1 runner, a check of requests."""

from __future__ import annotations

import numpy as np

from vllm_patches.tandem.config import CONFIG_KEY
from vllm_patches.upstream import is_replaced, replaces

RESPONSES_KEY = "tandem_responses"


def add_authorship_property() -> None:
    """Give ``CompletionOutput`` a read-only ``authorship_mask``: one int per token, 1 = senior, 0 = junior.

    None without a mask: an unfinished or aborted output, an engine without tandem. The mask covers the whole response,
    also when the output carries only the last delta of its token ids.
    """
    from vllm import CompletionOutput

    if not hasattr(CompletionOutput, "authorship_mask"):
        CompletionOutput.authorship_mask = property(_authorship_mask)


def encode_authorship(bits: list[int]) -> np.ndarray:
    """The mask in the shape of vLLM's per-token array channel: bool ``(T, 1, 1)``; real expert ids are never bool."""
    return np.asarray(bits, dtype=np.bool_).reshape(-1, 1, 1)


def _authorship_mask(output) -> list[int] | None:
    channel = output.routed_experts
    if channel is None or channel.dtype != np.bool_:
        return None
    return channel.reshape(-1).astype(int).tolist()


def choose_runner() -> None:
    """Keep engines with a ``tandem`` section in ``additional_config`` on the V1 model runner, which the decoder
    extends; all other engines get what vLLM chooses."""
    from vllm.config import VllmConfig

    upstream = VllmConfig.use_v2_model_runner
    if is_replaced(upstream):
        return

    @replaces(upstream.fget)
    def use_v2_model_runner(config) -> bool:
        return not is_tandem(config) and upstream.fget(config)

    VllmConfig.use_v2_model_runner = property(use_v2_model_runner)


def check_requests() -> None:
    """Make ``InputProcessor.process_inputs`` refuse, with VLLMValidationError, what a tandem engine cannot serve.

    Servers answer with HTTP 400. The request goes to the engine with its number of responses in
    ``extra_args["tandem_responses"]`` where that is more than one.
    """
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.input_processor import InputProcessor

    upstream = InputProcessor.process_inputs
    if is_replaced(upstream):
        return

    @replaces(upstream)
    def process_inputs(processor, *args, **kwargs):
        request = upstream(processor, *args, **kwargs)
        if is_tandem(processor.vllm_config):
            try:
                _rules_of(processor).check(request, from_client=True)
            except ValueError as fault:
                # A plain ValueError is HTTP 500 since 0.28.
                raise VLLMValidationError(str(fault)) from fault
            # vLLM copied the parameters: the caller's own stay as they are.
            params = request.sampling_params
            if params.n > 1:
                params.extra_args = (params.extra_args or {}) | {RESPONSES_KEY: params.n}
        return request

    InputProcessor.process_inputs = process_inputs


def _rules_of(processor):
    if not hasattr(processor, "tandem_rules"):
        # Imported at the first request: the entry point runs in processes that need none of it.
        from vllm_patches.tandem.request_rules import RequestRules

        processor.tandem_rules = RequestRules(processor.vllm_config)
    return processor.tandem_rules


def is_tandem(vllm_config) -> bool:
    """Whether this engine was asked to decode in tandem."""
    additional = vllm_config.additional_config
    return isinstance(additional, dict) and CONFIG_KEY in additional
