"""Engines in this process: vLLM, and the tandem decoder. Several devices serve one model behind endpoints."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from recipes.core import vllm_engine
from recipes.core.sampling import Request, Sampling
from recipes.evaluation.handoff import Part, Turn, author_spans, clipped
from recipes.evaluation.sample_store import OnDone, SampledResponse, responses_of
from reward_fns.completions import Answer
from vllm_patches.tandem.config import CONFIG_KEY, engine_arguments
from vllm_patches.tandem.outputs import AuthorshipError


class VllmEngine(vllm_engine.VllmEngine):
    """A model in vLLM's offline engine."""

    def write(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request; `on_done` is called in the order in which problems finish."""
        self.generate(requests, sampling, lambda request, answer: on_done(request.key, self.responses(request, answer)))

    def responses(self, request: Request, answer: Answer) -> list[SampledResponse]:
        """The responses to a problem, in the order of their indices."""
        return responses_of(request.key, answer)

    def write_parts(self, turns: Sequence[Turn], sampling: Sampling, separator: str) -> list[Part]:
        """One part of each response, up to and with the token in which `separator` ends.

        That token belongs to the part whole, whatever text it carries after the separator: what the other model reads
        are tokens.
        """
        parts: dict[str, Part] = {}
        self.generate(
            turn_requests(turns),
            part_sampling(sampling, separator),
            lambda request, answer: parts.__setitem__(request.key, part_of(answer, separator)),
        )
        return [parts[str(number)] for number in range(len(turns))]

    def prompt_log_probs(self, token_ids: Sequence[Sequence[int]]) -> list[list[object]]:
        """What `partner.response_log_probs` reads: for each sequence, the log-probability of every token of it."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        prompts = [{"prompt_token_ids": list(ids)} for ids in token_ids]
        return [output.prompt_logprobs for output in self.llm.generate(prompts, parameters, use_tqdm=False)]


def turn_requests(turns: Sequence[Turn]) -> list[Request]:
    """The turns as requests, named by their positions."""
    return [Request(str(number), turn.token_ids, turn.seed, turn.max_tokens) for number, turn in enumerate(turns)]


def part_sampling(sampling: Sampling, separator: str) -> Sampling:
    """The sampling of one part: a single text that ends with `separator`, which stays in it."""
    return dataclasses.replace(sampling, n=1, stop=(separator, *sampling.stop), include_stop=True)


def part_of(answer: Answer, separator: str) -> Part:
    """What one model wrote in its turn; the response is over when it ended by anything but the separator or length."""
    (written,) = answer.completions
    return Part(list(written.token_ids or ()), written.finish_reason == "stop" and written.stop_reason != separator)


@dataclasses.dataclass(frozen=True)
class TandemAnswer(Answer):
    """Completions with, for each of their tokens, whether the model wrote it."""

    own: tuple[Sequence[bool], ...] = ()


class TandemEngine(VllmEngine):
    """A model and its partner in vLLM's offline engine.

    Args:
        model, partner: folders or hub ids; one vocabulary.
        options: those of `vllm.LLM`.
        prob_own: probability that a draw falls on the model.
        max_gap_tokens: most tokens between two draws.

    Raises:
        EnvironmentProblem: the engine refuses the pair, with its reason.
    """

    def __init__(self, model: str, partner: str, options: Mapping[str, Any], prob_own: float, max_gap_tokens: int):
        settings = {"junior_model": partner, "prob_senior": prob_own, "max_gap_tokens": max_gap_tokens}
        super().__init__(model, {**options, **engine_arguments(settings)})

    def extra_arguments(self, request: Request) -> dict[str, Any]:
        # The coins follow the problem, as its samples do.
        return {CONFIG_KEY: {"seed": request.seed}}

    def answer(self, output: Any) -> Answer:
        """The completions in one of vLLM's outputs, with the authors of their tokens."""
        answer = super().answer(output)
        masks = [one.authorship_mask for one in sorted(output.outputs, key=lambda one: one.index)]
        if any(mask is None for mask in masks):
            raise AuthorshipError(f"request {output.request_id}: a response came without its authors")
        return TandemAnswer(answer.completions, answer.prompt_tokens, answer.completion_tokens, tuple(masks))

    def responses(self, request: Request, answer: Answer) -> list[SampledResponse]:
        """The responses to a problem, with what the model wrote of each."""
        samples = []
        for sample, written, mask in zip(
            super().responses(request, answer), answer.completions, answer.own, strict=True
        ):
            authors = ["model" if own else "partner" for own in mask]
            spans = author_spans(
                written.token_ids, authors, "model", lambda ids: self.tokenizer.decode(ids, skip_special_tokens=True)
            )
            own_spans = clipped(spans, len(written.text))
            samples.append(dataclasses.replace(sample, own_tokens=sum(mask), own_spans=own_spans))
        return samples
