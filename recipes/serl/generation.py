"""Batches for verl's agent loop, and texts sampled from the running rollout servers with settings of their own."""

import asyncio
import logging
import uuid
import zlib
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from tensordict import TensorDict
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from recipes.core.split_resources import rollout_devices
from recipes.serl.pool import Instruction
from recipes.serl.settings import InstructionSettings

logger = logging.getLogger(__name__)


class RawPromptAgentLoop(SingleTurnAgentLoop):
    """The agent loop `serl_raw_prompt`: one turn on the bare text of the prompt, as in the SeRL code's training and
    validation, without template or special tokens."""

    async def ct_build_initial_tokens(self, messages, *_, **__) -> list[int]:
        """Tokenise the messages' contents, joined."""
        text = "".join(message["content"] for message in messages)
        ids = await self.loop.run_in_executor(None, lambda: self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return self._cap_text_prompt_length(ids)


SEED_NAMES = {"sglang": "sampling_seed"}
"""What a rollout engine calls the seed of one request; `seed` elsewhere."""


class GenerationFailed(RuntimeError):
    """No request of a generation call was answered: a fault of the servers, not of the model."""


def generate_texts(
    client: Any,
    tokenizer: Any,
    settings: InstructionSettings,
    prompts: Sequence[Sequence[int]],
    *,
    seed: str,
    engine: str = "vllm",
    timeout: float = 600.0,
) -> list[str | None]:
    """Sample one continuation of each prompt from verl's LLM servers, which must be awake.

    Args:
        client: verl's client of its LLM servers.
        settings: the sampling of the instructions.
        prompts: token ids of each prompt.
        seed: the request of a prompt has a seed that depends on this text and the prompt's place.
        engine: name of the rollout engine.
        timeout: seconds for one request.

    Returns:
        Texts, `None` where a request failed.

    Raises:
        GenerationFailed: all of them failed.
    """
    sampling = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "presence_penalty": settings.presence_penalty,
        "max_tokens": settings.max_tokens,
    }

    async def ask(number: int, ids: Sequence[int]) -> Sequence[int]:
        own = {SEED_NAMES.get(engine, "seed"): zlib.crc32(f"{seed}/{number}".encode())}
        request = client.generate(uuid4().hex, prompt_ids=ids, sampling_params={**sampling, **own})
        return (await asyncio.wait_for(request, timeout)).token_ids

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(ask(*item) for item in enumerate(prompts)), return_exceptions=True)

    responses = asyncio.run(ask_all())
    errors = [ids for ids in responses if isinstance(ids, BaseException)]
    for error in errors:
        logger.warning("a prompt was not answered: %r", error)
    if errors and len(errors) == len(responses):
        raise GenerationFailed(f"no prompt of {len(prompts)} was answered: {errors[0]!r}") from errors[0]
    return [
        None if isinstance(ids, BaseException) else tokenizer.decode(ids, skip_special_tokens=True) for ids in responses
    ]


def rollout_engines(config: Any) -> int:
    """Count the rollout engines of a composed configuration."""
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    devices = rollout_devices(config) or trainer.nnodes * trainer.n_gpus_per_node
    per_engine = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    return max(1, devices // per_engine)


def chat_tokenizer(tokenizer: Any, template_kwargs: dict[str, Any] | None = None):
    """Make a function from chat messages to token ids: by the chat template, or bare text where there is none."""

    def tokenize(messages: list[dict[str, str]]) -> list[int]:
        if tokenizer.chat_template is None:
            text = "\n".join(message["content"] for message in messages)
            return tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **(template_kwargs or {})
        )

    return tokenize


def instruction_row(instruction: Instruction, answer_template: str, index: int) -> dict[str, Any]:
    """Build the dataset row of a prompt without gold answer, as verl's dataset would."""
    return {
        "raw_prompt": [
            *instruction.before,
            {"role": "user", "content": answer_template.replace("{question}", instruction.text)},
        ],
        "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
        "data_source": "serl/self_instruct",
        "reward_model": {"style": "vote", "ground_truth": ""},
        "extra_info": {"index": index},
        "index": index,
        "tools_kwargs": {},
        "interaction_kwargs": {},
    }


def prompt_batch(rows: list[dict[str, Any]], global_steps: int) -> tuple[TensorDict, list[str]]:
    """Collate rows into the batch that verl's agent loop takes; return it and the uid of each row."""
    batch = collate_fn(rows)
    uids = [str(uuid.uuid4()) for _ in rows]
    batch["uid"] = np.array(uids, dtype=object)
    batch = tu.get_tensordict(batch)
    tu.assign_non_tensor_data(batch, "global_steps", global_steps)
    return batch, uids
