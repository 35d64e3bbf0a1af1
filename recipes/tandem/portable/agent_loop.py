"""Agent loop `tandem_portable`: the loop `tandem` over two independent engines."""

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from recipes.core.settings import read
from recipes.tandem.agent_loop import TandemAgentLoop
from recipes.tandem.portable.joint_writer import ENDPOINT_FAULT, VERSION_KEYS, JointWriter
from recipes.tandem.portable.settings import BLOCK, PortableSettings
from reward_fns.endpoint import Endpoint
from vllm_patches.tandem.outputs import AuthorshipError

# verl builds a loop per response; connections are kept between them.
_junior_endpoints: dict[tuple[str, str], Endpoint] = {}


class PortableTandemAgentLoop(TandemAgentLoop):
    """Generate with the senior on verl's own server and the junior behind `algorithm.tandem.portable.junior_url`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        settings = read(PortableSettings, self.config.algorithm.tandem.portable, BLOCK)
        address = (settings.junior_url, settings.junior_name)
        if address not in _junior_endpoints:
            _junior_endpoints[address] = Endpoint(settings.endpoint)
        rollout = self.rollout_config
        self.server_manager = JointWriter(
            self.server_manager,
            _junior_endpoints[address],
            settings,
            self.boundaries,
            stop_ids(self.tokenizer),
            rollout.response_length,
            rollout.max_model_len or rollout.prompt_length + rollout.response_length,
        )

    def settings(self) -> Mapping[str, Any]:
        return self.config.algorithm.tandem.portable.tandem_config

    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        output = await super().run(sampling_params, **kwargs)
        for key in VERSION_KEYS:
            # a response without a senior token made no request to verl's engine, which would have returned its version
            if output.extra_fields.get(key) is None:
                output.extra_fields[key] = int(kwargs["global_steps"]) - 1
        return output

    def _write_mask(self, output: AgentLoopOutput, returned: object, extra: dict[str, Any]) -> None:
        if fault := output.extra_fields.pop(ENDPOINT_FAULT, None):
            raise AuthorshipError(fault)
        super()._write_mask(output, returned, extra)


def stop_ids(tokenizer) -> set[int]:
    """Return the token ids that end a response: the tokenizer's, and those of the model's generation config."""
    stops = {tokenizer.eos_token_id}
    try:
        stored = GenerationConfig.from_pretrained(tokenizer.name_or_path).eos_token_id
    except OSError:
        return stops
    return stops | set(stored if isinstance(stored, list) else [] if stored is None else [stored])
