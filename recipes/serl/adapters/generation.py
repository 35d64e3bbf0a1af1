"""Few-shot prompts through the running rollout servers, with sampling parameters of their own."""

import asyncio
import logging
import zlib
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from recipes.common.split_resources import rollout_devices
from recipes.serl.settings import InstructionSettings

logger = logging.getLogger(__name__)


SEED_NAMES = {"sglang": "sampling_seed"}
"""What a rollout engine calls the seed of one request; `seed` elsewhere."""


class GenerationFailed(RuntimeError):
    """No request of a generation call was answered: a fault of the servers, not of the model."""


class InstructionGenerator:
    """Samples one continuation per few-shot prompt from verl's LLM servers.

    Servers must be awake. Every request has a seed of its own that depends on (`rng_seed`, step, call, prompt).
    """

    def __init__(
        self,
        client: Any,
        tokenizer: Any,
        settings: InstructionSettings,
        *,
        rng_seed: int,
        engine: str = "vllm",
        timeout: float = 600.0,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.settings = settings
        self.rng_seed = rng_seed
        self.seed_name = SEED_NAMES.get(engine, "seed")
        self.timeout = timeout

    def __call__(self, prompts: list[list[int]], step: int, call: int) -> list[str | None]:
        """The continuations as text, `None` where a request failed; raises `GenerationFailed` when all did."""
        outputs = asyncio.run(self._generate(prompts, step, call))
        errors = [output for output in outputs if isinstance(output, BaseException)]
        for error in errors:
            logger.warning("a few-shot prompt of step %d was not answered: %r", step, error)
        if errors and len(errors) == len(outputs):
            reason = f"no few-shot prompt of {len(prompts)} was answered: {errors[0]!r}"
            raise GenerationFailed(reason) from errors[0]
        return [None if isinstance(output, BaseException) else self._text(output.token_ids) for output in outputs]

    async def _generate(self, prompts: list[list[int]], step: int, call: int) -> Sequence[Any]:
        requests = [
            asyncio.wait_for(
                self.client.generate(
                    uuid4().hex, prompt_ids=ids, sampling_params=self._sampling_params(step, call, number)
                ),
                self.timeout,
            )
            for number, ids in enumerate(prompts)
        ]
        return await asyncio.gather(*requests, return_exceptions=True)

    def _sampling_params(self, step: int, call: int, number: int) -> dict[str, Any]:
        return {
            "temperature": self.settings.temperature,
            "top_p": self.settings.top_p,
            "presence_penalty": self.settings.presence_penalty,
            "max_tokens": self.settings.max_tokens,
            self.seed_name: zlib.crc32(f"{self.rng_seed}/instructions/{step}/{call}/{number}".encode()),
        }

    def _text(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)


def rollout_engines(config: Any) -> int:
    """Rollout engines that a composed configuration starts."""
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    devices = rollout_devices(config) or trainer.nnodes * trainer.n_gpus_per_node
    per_engine = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    return max(1, devices // per_engine)


def chat_tokenizer(tokenizer: Any, template_kwargs: dict[str, Any] | None = None):
    """A function from chat messages to token ids with the tokenizer's chat template, or bare text where it has none."""

    def tokenize(messages: list[dict[str, str]]) -> list[int]:
        if tokenizer.chat_template is None:
            text = "\n".join(message["content"] for message in messages)
            return tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **(template_kwargs or {})
        )

    return tokenize
