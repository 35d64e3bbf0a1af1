"""Agent loop `tandem`: generate one turn and set its response mask to the verified authorship mask.

A faulty mask must stop the run. verl regenerates or drops a session that raises, so the fault is returned as the
session's reward information, and the trainer raises it.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils import tensordict_utils as tu

from recipes.tandem.authorship import response_identity, verified
from recipes.tandem.settings import SECTION, tandem_config
from vllm_patches.tandem.boundaries import BoundarySets
from vllm_patches.tandem.config import CONFIG_KEY, TandemConfig, request_settings
from vllm_patches.tandem.outputs import AuthorshipError, mask_from_transfer_params

FAULT = "authorship_fault"
COUNTS = "authorship"
VALIDATION_AUTHORS = "validation_authors"
SOLO, JOINT = "solo", "joint"

# verl builds a loop per response; reading a vocabulary takes a second.
_boundary_sets: dict[str, BoundarySets] = {}


class TandemAgentLoop(SingleTurnAgentLoop):
    """Run verl's single-turn loop on a tandem engine; validation prompts say whether the senior writes alone."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        section = OmegaConf.to_container(OmegaConf.create(self.settings()), resolve=True)
        self.tandem: TandemConfig = tandem_config(section)
        key = json.dumps([getattr(self.tokenizer, "name_or_path", ""), section], sort_keys=True)
        if key not in _boundary_sets:
            _boundary_sets[key] = self.tandem.boundary_sets(self.tokenizer, len(self.tokenizer))
        self.boundaries = _boundary_sets[key]

    def settings(self) -> Mapping[str, Any]:
        """Return the block of settings that decides who writes which token."""
        return self.rollout_config.engine_kwargs["vllm"][SECTION]

    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        # verl hands index, step and session to each loop, and the server passes extra_args on to the engine. A response
        # whose reward_score is set (`_report_fault`) is not judged again.
        authors = kwargs.get(VALIDATION_AUTHORS)
        request = response_identity(
            int(kwargs["index"]), int(kwargs["global_steps"]), int(kwargs["session_id"]), authors is not None
        )
        extra = {"request": request} | ({"selection_strategy": "senior"} if authors == SOLO else {})
        others = sampling_params.get("extra_args") or {}
        output = await super().run({**sampling_params, "extra_args": {**others, CONFIG_KEY: extra}}, **kwargs)
        returned = mask_from_transfer_params(output.extra_fields.pop("kv_transfer_params", None))
        try:
            self._write_mask(output, returned, extra)
        except AuthorshipError as error:
            self._report_fault(output, str(error))
        return output

    def _write_mask(self, output: AgentLoopOutput, returned: object, extra: dict[str, Any]) -> None:
        """Set the response mask to the verified authors; tokens that verl's token builder added get 0.

        Raises:
            AuthorshipError: the mask that the engine returned is faulty.
        """
        emitted = [position for position, trained in enumerate(output.response_mask) if trained]
        if isinstance(returned, list) and len(output.response_ids) == self.response_length:
            # The loop cuts a response at the response length; the engine's mask is cut alike.
            returned = returned[: len(emitted)]
        params = request_settings(self.tandem, extra, output.prompt_ids).params
        tokens = [output.response_ids[position] for position in emitted]
        counts = verified(returned, tokens, params, self.boundaries.of(params.strategy.boundary))
        mask = [0] * len(output.response_mask)
        for position, author in zip(emitted, returned, strict=True):
            mask[position] = int(author)
        output.response_mask = mask
        output.extra_fields[COUNTS] = dataclasses.asdict(counts)

    def _report_fault(self, output: AgentLoopOutput, fault: str) -> None:
        """Exclude the response from training and pass the fault on to the trainer."""
        if not output.response_ids:
            output.response_ids = [self.tokenizer.eos_token_id]
        output.response_mask = [0] * len(output.response_ids)
        if output.response_logprobs is not None:
            output.response_logprobs = [0.0] * len(output.response_ids)
        output.reward_score = 0.0
        output.extra_fields["reward_extra_info"] = {FAULT: fault}


class TandemAgentLoopManager(AgentLoopManagerTQ):
    """Add to each validation prompt who writes its response; verl's loops cannot recognise validation otherwise.

    Attributes:
        validation_authors: `solo` or `joint`, set by the trainer before each validation pass.
    """

    validation_authors = SOLO

    def generate_sequences(self, prompts) -> None:
        if tu.get(prompts, "validate", default=False):
            tu.assign_non_tensor_data(prompts, VALIDATION_AUTHORS, self.validation_authors)
        super().generate_sequences(prompts)
