"""The scheduler class of the speculative mode: several tokens a step, or none, and each token's author with it."""

from __future__ import annotations

import copy
import itertools

from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.request import Request, RequestStatus

from vllm_patches import guard
from vllm_patches.tandem.outputs import AUTHORSHIP_KEY
from vllm_patches.tandem.scheduler import TandemScheduler
from vllm_patches.tandem.speculative.round import DraftLength


class SpeculativeScheduler(TandemScheduler):
    """``scheduler_cls`` of a tandem engine in the speculative mode."""

    def __init__(self, *args, **kwargs) -> None:
        guard.require("speculative")
        super().__init__(*args, **kwargs)
        self._held_prompt_log_probs: dict[str, LogprobsTensors] = {}
        self.draft_length = DraftLength(self.num_spec_tokens, self._tandem_config.adapt_draft_tokens)

    def schedule(self, *args, **kwargs):
        """As the stock scheduler's, with the present number of drafts to make for the next step."""
        # A resumed request comes with drafts of -1, which `Round` takes for none.
        output = super().schedule(*args, **kwargs)
        output.num_spec_tokens_to_schedule = self.draft_length.current
        return output

    def add_request(self, request: Request) -> None:
        """As ``TandemScheduler``'s. A response ends one token before ``max_model_len``: vLLM schedules no draft at the
        last position, where a junior's turn could then never come."""
        room = self.max_model_len - 1 - request.num_prompt_tokens
        if room > 0:
            request.max_tokens = min(request.max_tokens, room)
        super().add_request(request)

    def update_from_output(self, scheduler_output, model_runner_output):
        self._hold_prompt_log_probs(model_runner_output)
        scheduled = [self.requests.get(i) for i in scheduler_output.num_scheduled_tokens]  # before the ended leave
        one_by_one = {one.request_id for one in scheduled if one is not None and one.tandem_sends_each_author}
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if hasattr(model_runner_output, "tandem_outcome"):  # a step without tokens has none
            self.draft_length.observe(model_runner_output.tandem_outcome, model_runner_output.tandem_cost_ratio)
        for client_outputs in outputs.values():
            parts = [
                one_per_token(output) if output.request_id in one_by_one else [output]
                for output in client_outputs.outputs
            ]
            client_outputs.outputs = list(itertools.chain.from_iterable(parts))
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            # A step that emitted nothing ran the last token, which is to be run again in front of its drafts.
            if request is not None and request.status == RequestStatus.RUNNING:
                request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
        return outputs

    def _hold_prompt_log_probs(self, model_runner_output) -> None:
        """Keep what came with a prompt's last step until the request emits: vLLM takes it for certain that this step
        does, and would stop at one that emits nothing."""
        emitted, row_of = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
        log_probs = model_runner_output.prompt_logprobs_dict
        for request_id, row in row_of.items():
            if emitted and emitted[row]:
                if request_id in self._held_prompt_log_probs:
                    log_probs[request_id] = self._held_prompt_log_probs.pop(request_id)
            elif log_probs.get(request_id) is not None:
                self._held_prompt_log_probs[request_id] = log_probs.pop(request_id)
        for request_id in self._held_prompt_log_probs.keys() - self.requests.keys():
            del self._held_prompt_log_probs[request_id]

    def _authors_of(self, new_token_ids: list[int], authors: list[int]) -> list[int]:
        # What follows a stop token was emitted by the worker and dropped by the scheduler.
        return authors[: len(new_token_ids)]


def one_per_token(output: EngineCoreOutput) -> list[EngineCoreOutput]:
    """The output as one for each of its new tokens, in order; itself where it has one or none.

    vLLM's front end looks for stop strings once in an output and keeps all of its tokens, those behind the string as
    well; of a response that it has ended, it ignores what follows. So where a response ends does not depend on how many
    tokens a round emits. What belongs to the step goes with the first token, what belongs to the end with the last.
    """
    count = len(output.new_token_ids)
    if count < 2:
        return [output]
    parts = [copy.copy(output) for _ in range(count)]
    for at, part in enumerate(parts):
        part.new_token_ids = output.new_token_ids[at : at + 1]
        if output.new_logprobs is not None:
            part.new_logprobs = output.new_logprobs.slice_request(at, 1)
        if output.routed_experts is not None:
            part.routed_experts = output.routed_experts[at : at + 1]
    for part in parts[1:]:
        part.new_prompt_logprobs_tensors = part.events = None
    mask = (output.kv_transfer_params or {}).get(AUTHORSHIP_KEY)
    for behind, part in zip(range(count - 1, 0, -1), parts[:-1], strict=True):
        part.finish_reason = part.stop_reason = None
        part.kv_transfer_params = None if mask is None else {AUTHORSHIP_KEY: mask[:-behind]}
    return parts
