"""The scheduler class of a tandem engine: carries each token's author from the model runner to the client.

Two existing fields carry it: ``routed_experts``, vLLM's per-token array, which its front end concatenates per
response into ``CompletionOutput`` (also for n > 1); and ``kv_transfer_params`` of a finished request's last output,
which servers pass on as they are.

In the lazy mode it also holds decoded KV blocks back from the prefix cache until both models have written them.
"""

from __future__ import annotations

import functools

from vllm.logger import init_logger
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request, RequestStatus

from vllm_patches import guard
from vllm_patches.tandem.frontend import RESPONSES_KEY, encode_authorship
from vllm_patches.tandem.outputs import AUTHORSHIP_KEY
from vllm_patches.tandem.request_rules import RequestRules

logger = init_logger(f"vllm.{__name__}")


class TandemScheduler(Scheduler):
    """``scheduler_cls`` of a tandem engine."""

    def __init__(self, *args, **kwargs) -> None:
        guard.require("tandem")
        super().__init__(*args, **kwargs)
        self._rules = RequestRules(self.vllm_config)
        self._tandem_config = self._rules.config
        self._refused: list[Request] = []
        if self._rules.mode == "lazy":
            self.kv_cache_manager.allocate_slots = _without_caching_decodes(self.kv_cache_manager.allocate_slots)

    def add_request(self, request: Request) -> None:
        """As the stock scheduler's; a request that this engine cannot serve ends at once with an error.

        The front end refuses such a request; one that comes another way must not end the engine for every client.
        """
        super().add_request(request)
        request.tandem_authors = []  # a new response; a preempted one keeps its request, and so its authors
        try:
            settings = self._rules.check(request)
        except ValueError as fault:
            logger.error("Request %s is refused: %s", request.request_id, fault)
            self.finish_requests(request.request_id, RequestStatus.FINISHED_ERROR)
            self._refused.append(request)
            return
        # The front end may end a response at a stop string, and the mask of word_align 'before' cannot be recomputed.
        # All other masks are sent once, at the end.
        request.tandem_sends_each_author = bool(request.sampling_params.stop) or settings.params.word_align == "before"

    def update_from_output(self, scheduler_output, model_runner_output) -> dict[int, EngineCoreOutputs]:
        sampled = scheduler_output.num_scheduled_tokens
        requests = {request_id: self.requests.get(request_id) for request_id in sampled}
        self._cache_what_both_hold(requests, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for client_outputs in outputs.values():
            for output in client_outputs.outputs:
                request = requests.get(output.request_id)
                if request is not None:
                    self._attach_authorship(output, request, model_runner_output)
        for request in self._refused:
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(
                EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ERROR)
            )
        self._refused.clear()
        return outputs

    def _cache_what_both_hold(self, requests: dict[str, Request | None], model_runner_output) -> None:
        """Give the prefix cache the blocks that both models hold; before the stock update, which frees the finished."""
        held = getattr(model_runner_output, "tandem_held", None)
        if held is None:
            return
        for request_id, request in requests.items():
            if request is not None:
                row = model_runner_output.req_id_to_index[request_id]
                self.kv_cache_manager.cache_blocks(request, held[row])

    def _attach_authorship(self, output: EngineCoreOutput, request: Request, model_runner_output) -> None:
        """Record the author of a new token; send the mask when the request ends, or each author with its token."""
        if output.new_token_ids:
            row = model_runner_output.req_id_to_index[output.request_id]
            authors = self._authors_of(output.new_token_ids, model_runner_output.tandem_authors[row])
            request.tandem_authors.extend(authors)
            if request.tandem_sends_each_author:
                output.routed_experts = encode_authorship(authors)
        if output.finish_reason is not None:
            if not request.tandem_sends_each_author:
                output.routed_experts = encode_authorship(request.tandem_authors)
        # With a stop string any output may be the one at which the front end ends the response.
        may_be_last = output.finish_reason is not None or request.sampling_params.stop
        if may_be_last and RESPONSES_KEY not in (request.sampling_params.extra_args or {}):
            mask = {AUTHORSHIP_KEY: list(request.tandem_authors)}
            output.kv_transfer_params = (output.kv_transfer_params or {}) | mask

    def _authors_of(self, new_token_ids: list[int], author: int) -> list[int]:
        """The authors of a step's new tokens, from what the model runner said of the request."""
        if len(new_token_ids) != 1:
            raise RuntimeError(f"a tandem step emitted {len(new_token_ids)} tokens; expected one per request")
        return [author]


def _without_caching_decodes(allocate_slots):
    """``KVCacheManager.allocate_slots`` that caches no block a one-token query fills: one model may run it alone.

    Longer queries run both models within the step, so their blocks are cached at once as ever, and requests of the same
    step share a prompt.
    """

    @functools.wraps(allocate_slots)
    def allocate(request: Request, num_new_tokens: int, *args, **kwargs):
        if num_new_tokens == 1:
            kwargs["delay_cache_blocks"] = True
        return allocate_slots(request, num_new_tokens, *args, **kwargs)

    return allocate
