"""vLLM in this process: responses to problems, parts of a handoff, and log-probabilities of given texts."""

import dataclasses
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipes.core import vllm_engine
from recipes.core.sampling import Request, Sampling
from recipes.evaluation.handoff import Part, Turn
from recipes.evaluation.sample_store import SampledResponse, responses_of
from recipes.evaluation.sampling import OnDone
from reward_fns.completions import Answer

DEFAULT_MEMORY_SHARE = 0.9


def memory_part(options: Mapping[str, Any], part: float) -> dict[str, Any]:
    """Options of one of several engines on the same device: its part of the memory that all of them may take.

    vLLM refuses to start when less than `gpu_memory_utilization` of the device is free; two engines with the share
    meant for one cannot both start.
    """
    whole = options.get("gpu_memory_utilization", DEFAULT_MEMORY_SHARE)
    return {**options, "gpu_memory_utilization": round(whole * part, 4)}


class VllmEngine(vllm_engine.VllmEngine):
    """A model in vLLM's offline engine."""

    def write(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request; `on_done` is called in the order in which problems finish."""
        self.generate(requests, sampling, lambda request, answer: on_done(request.key, self.responses(request, answer)))

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[str, list[SampledResponse]]]:
        """The n responses to every request, in the order in which problems finish."""
        finished: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def work() -> None:
            try:
                self.write(requests, sampling, lambda *found: finished.put(found))
                finished.put(None)
            except Exception as error:
                finished.put(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while (found := finished.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield found
        thread.join()

    def responses(self, request: Request, answer: Answer) -> list[SampledResponse]:
        """The responses to a problem, in the order of their indices."""
        return responses_of(request.key, answer)

    def write_parts(self, turns: Sequence[Turn], sampling: Sampling, separator: str) -> list[Part]:
        """One part of each response, up to and with the token in which `separator` ends.

        That token belongs to the part whole, whatever text it carries after the separator: what the other model reads
            are tokens.
        """
        parts: dict[str, Part] = {}

        def keep(request: Request, answer: Answer) -> None:
            parts[request.key] = part_of(answer, separator)

        self.generate(requests_of(turns), part_sampling(sampling, separator), keep)
        return [parts[str(number)] for number in range(len(turns))]

    def prompt_log_probs(self, token_ids: Sequence[Sequence[int]]) -> list[list[object]]:
        """What `legibility.response_log_probs` reads: for each sequence, the log-probability of every token of it."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        prompts = [{"prompt_token_ids": list(ids)} for ids in token_ids]
        return [output.prompt_logprobs for output in self.llm.generate(prompts, parameters, use_tqdm=False)]


def requests_of(turns: Sequence[Turn]) -> list[Request]:
    """The turns as requests, named by their positions."""
    return [Request(str(number), turn.token_ids, turn.seed, turn.most) for number, turn in enumerate(turns)]


def part_sampling(sampling: Sampling, separator: str) -> Sampling:
    """The sampling of one part: a single text that ends with `separator`, kept in it."""
    return dataclasses.replace(sampling, n=1, stop=(separator, *sampling.stop), include_stop=True)


def part_of(answer: Answer, separator: str) -> Part:
    """What one model wrote in its turn; the response is over when it ended by anything but the separator or length."""
    (written,) = answer.completions
    return Part(list(written.token_ids or ()), written.finish_reason == "stop" and written.stop_reason != separator)
