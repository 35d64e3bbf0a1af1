"""Where cold-start completions come from: a model in this process, or an endpoint."""

from typing import Any, Protocol

from recipes.core.sampling import EndpointEngine, Request, Sampling
from recipes.core.vllm_engine import Gathered, VllmEngine
from recipes.pasodoble.prompts import THINK, Messages, render
from reward_fns.completions import Completion
from reward_fns.endpoint import Endpoint, EndpointSettings

ORIGINAL = Sampling(n=6, temperature=0.8, max_tokens=6144)
"""Source: PasoDoble, ``generate_sft.py`` (there with Qwen3-14B)."""


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

    def __init__(self, settings: EndpointSettings, sampling: Sampling):
        self._engine, self._endpoint, self._sampling = EndpointEngine(settings), Endpoint(settings), sampling

    async def generate(self, messages: Messages, seed: int) -> list[str]:
        """Raises EndpointError."""
        answer = await self._engine.ask(self._endpoint, Request("", messages, seed), self._sampling)
        return [whole_text(completion) for completion in answer.completions]

    async def close(self) -> None:
        await self._endpoint.close()


class VllmGenerator:
    """vLLM in this process; prompts that wait together are generated together."""

    def __init__(self, model: str, sampling: Sampling, engine_options: dict[str, Any]):
        """``engine_options`` go to ``vllm.LLM`` (tensor_parallel_size, gpu_memory_utilization, max_model_len, ...)."""
        engine = VllmEngine(model, engine_options, window=256)
        self._tokenizer, self._gathered = engine.tokenizer, Gathered(engine, sampling)

    async def generate(self, messages: Messages, seed: int) -> list[str]:
        """Raises ValueError if the model's tokenizer has no chat template."""
        return (await self._gathered.ask(Request("", render(self._tokenizer, messages), seed))).texts

    async def close(self) -> None:
        await self._gathered.close()
