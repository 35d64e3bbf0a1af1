"""Where cold-start completions come from: a model in this process, or an endpoint.

Source: PasoDoble, ``generate_sft.py`` (Qwen3-14B, temperature 0.8, top_p 1, six completions of at most 6,144 tokens).
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from recipes.pasodoble.prompts import THINK, Messages, render
from reward_fns.completions import Completion
from reward_fns.endpoint import Endpoint


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled; ``max_tokens`` bounds each completion."""

    n: int = 6
    temperature: float = 0.8
    top_p: float = 1.0
    max_tokens: int = 6144

    def __post_init__(self):
        if self.n < 1 or self.max_tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"need n and max_tokens of at least 1, temperature >= 0, 0 < top_p <= 1; got {self}")


class Generator(Protocol):
    """Gives ``n`` completions of a prompt; the same seed asks for the same ones, as far as the engine can."""

    async def generate(self, messages: Messages, seed: int) -> list[str]: ...

    async def close(self) -> None: ...


def whole_text(completion: Completion) -> str:
    """A completion with its thinking, which a server with a reasoning parser gives apart from it."""
    thinking = f"{THINK}\n{completion.reasoning}\n</think>\n" if completion.reasoning else ""
    return thinking + completion.text


class EndpointGenerator:
    """An OpenAI-compatible server, which renders the prompt with its own chat template."""

    def __init__(self, endpoint: Endpoint, sampling: Sampling):
        self._endpoint, self._sampling = endpoint, sampling

    async def generate(self, messages: Messages, seed: int) -> list[str]:
        """Raises EndpointError."""
        s = self._sampling
        answer = await self._endpoint.chat(
            messages, n=s.n, temperature=s.temperature, top_p=s.top_p, max_tokens=s.max_tokens, seed=seed
        )
        return [whole_text(completion) for completion in answer.completions]

    async def close(self) -> None:
        await self._endpoint.close()


class VllmGenerator:
    """vLLM in this process; prompts that wait together are generated together."""

    def __init__(self, model: str, sampling: Sampling, engine_options: dict[str, Any], max_prompts: int = 256):
        """``engine_options`` go to ``vllm.LLM`` (tensor_parallel_size, gpu_memory_utilization, max_model_len, ...)."""
        from vllm import LLM

        self._sampling = sampling
        self._llm = LLM(model=model, **engine_options)
        self._tokenizer = self._llm.get_tokenizer()
        self._max_prompts = max_prompts
        self._waiting: list[tuple[str, int, asyncio.Future]] = []
        self._worker: asyncio.Task | None = None

    async def generate(self, messages: Messages, seed: int) -> list[str]:
        """Raises ValueError if the model's tokenizer has no chat template."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((render(self._tokenizer, messages), seed, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def close(self) -> None:
        if self._worker is not None:
            await self._worker

    async def _work(self) -> None:
        while self._waiting:
            # whoever is about to ask gets a place in this batch
            await asyncio.sleep(0)
            batch, self._waiting = self._waiting[: self._max_prompts], self._waiting[self._max_prompts :]
            try:
                results = await asyncio.to_thread(
                    self._generate, [prompt for prompt, _, _ in batch], [s for _, s, _ in batch]
                )
            except Exception as error:
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, _, future), texts in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(texts)

    def _generate(self, prompts: list[str], seeds: list[int]) -> list[list[str]]:
        from vllm import SamplingParams

        s = self._sampling
        params = [
            SamplingParams(n=s.n, temperature=s.temperature, top_p=s.top_p, max_tokens=s.max_tokens, seed=seed)
            for seed in seeds
        ]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return [[completion.text for completion in output.outputs] for output in outputs]
