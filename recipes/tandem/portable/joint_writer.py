"""Generate a response with the senior on any of verl's engines and the junior behind an OpenAI-compatible endpoint.

:class:`JointWriter` takes the place of verl's server in an agent loop: for one response it lets the two engines write
in turns (``handover.py``) and returns what a tandem engine would, mask included.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transformers import GenerationConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.workers.rollout.replica import TokenOutput

from recipes.core.settings import read
from recipes.tandem.agent_loop import TandemAgentLoop
from recipes.tandem.portable.handover import write_jointly
from recipes.tandem.portable.settings import BLOCK, PortableSettings
from reward_fns.completions import Answer
from reward_fns.endpoint import Endpoint
from reward_fns.errors import EndpointError
from vllm_patches.tandem.boundaries import BoundarySets
from vllm_patches.tandem.config import CONFIG_KEY, request_settings
from vllm_patches.tandem.outputs import AUTHORSHIP_KEY, AuthorshipError
from vllm_patches.tandem.schedule import JUNIOR, SENIOR

ENDPOINT_FAULT = "junior_endpoint_fault"
# Where verl keeps the oldest and the newest weights that wrote a response.
VERSION_KEYS = ("min_global_steps", "max_global_steps")


class JointWriter:
    """Generate as a tandem engine would: senior and junior write each response in turns."""

    def __init__(
        self,
        senior: Any,
        junior: Endpoint,
        settings: PortableSettings,
        boundaries: BoundarySets,
        stop_ids: Collection[int],
        response_length: int,
        context_length: int,
    ):
        """Store both models and the limits of a response.

        Args:
            senior: verl's server, as an agent loop gets it.
            junior: the junior's endpoint.
            settings: the block `algorithm.tandem.portable`.
            boundaries: the tokens at which authors may change, by kind.
            stop_ids: tokens that end a response, by either author.
            response_length: most tokens of a response.
            context_length: most tokens of prompt and response.
        """
        self._senior, self._junior, self._settings = senior, junior, settings
        self._config, self._boundaries, self._stop_ids = settings.schedule, boundaries, frozenset(stop_ids)
        self._response_length, self._context_length = response_length, context_length

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **kwargs: Any
    ) -> TokenOutput:
        """Generate one response, `(T,)`: tokens, the senior's log-probs at its own tokens (0 elsewhere), and the mask.

        A fault of the junior's endpoint is returned in ``extra_fields`` without a mask: verl would regenerate or drop a
        response whose loop raises.
        """
        sampling = dict(sampling_params)
        extra = dict(sampling.pop("extra_args", None) or {})
        params = request_settings(self._config, extra.pop(CONFIG_KEY, None), prompt_ids).params
        if extra:
            sampling["extra_args"] = extra
        longest = min(self._response_length, self._context_length - len(prompt_ids))
        # by the position from which the senior was asked to continue; what is asked again replaces what was thrown away
        log_probs: dict[int, list[float]] = {}
        versions: list[int] = []

        async def senior(token_ids: Sequence[int], max_tokens: int, seed: int) -> list[int]:
            output = await self._senior.generate(
                request_id=request_id,
                prompt_ids=list(token_ids),
                sampling_params={**sampling, "max_tokens": max_tokens},
                **kwargs,
            )
            step_versions = [output.extra_fields.get(key) for key in VERSION_KEYS]
            versions.extend(version for version in step_versions if version is not None)
            written = output.token_ids[:max_tokens]
            position = len(token_ids) - len(prompt_ids)
            log_probs[position] = output.log_probs or [0.0] * len(written)
            return written

        async def junior(token_ids: Sequence[int], max_tokens: int, seed: int) -> list[int]:
            return await self._junior.complete(
                token_ids,
                max_tokens=max_tokens,
                temperature=sampling["temperature"],
                top_p=sampling["top_p"],
                top_k=sampling["top_k"],
                return_token_ids=True,
                read=functools.partial(written_token_ids, most=max_tokens),
            )

        alone = params.selection_strategy == "senior"
        try:
            response = await write_jointly(
                prompt_ids,
                {SENIOR: senior, JUNIOR: junior},
                params,
                self._boundaries.of(params.strategy.boundary),
                stop_ids=self._stop_ids,
                max_tokens=longest,
                chunk_tokens=longest if alone else self._settings.chunk_tokens,
            )
        except EndpointError as error:
            return TokenOutput(token_ids=[], extra_fields={ENDPOINT_FAULT: f"the junior's endpoint {error}"})
        mask = response.authorship_mask
        return TokenOutput(
            token_ids=response.token_ids,
            log_probs=[
                log_probs[start][i - start] if author == SENIOR else 0.0
                for i, (author, start) in enumerate(zip(mask, response.asked_at, strict=True))
            ]
            if sampling.get("logprobs")
            else None,
            extra_fields={"kv_transfer_params": {AUTHORSHIP_KEY: mask}}
            | (dict(zip(VERSION_KEYS, (min(versions), max(versions)), strict=True)) if versions else {}),
        )


def written_token_ids(answer: Answer, most: int) -> list[int]:
    """Read the token ids that the junior wrote, a stop token included.

    Raises:
        ValueError: none, or more than `most`.
    """
    token_ids = answer.completions[0].token_ids
    if not token_ids or len(token_ids) > most:
        raise ValueError(f"expected 1 to {most} token ids, found {token_ids!r}; vLLM's server knows return_token_ids")
    return list(token_ids)


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
