"""Word handoff: two models write one response in one engine, the author redrawn after each word (`vllm_patches`)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from recipes.core.sampling import Request
from recipes.evaluation.handoff import author_spans, clipped
from recipes.evaluation.sample_store import SampledResponse
from recipes.evaluation.vllm_engine import VllmEngine
from reward_fns.completions import Answer, Completion
from vllm_patches.tandem.config import CONFIG_KEY, engine_arguments
from vllm_patches.tandem.outputs import AuthorshipError


class TandemEngine(VllmEngine):
    """A model and its partner in vLLM's offline engine."""

    def __init__(self, model: str, partner: str, options: Mapping[str, Any], prob_own: float, max_gap_tokens: int):
        """Load both.

        Args:
            model, partner: folders or hub ids; one vocabulary.
            options: those of `vllm.LLM`.
            prob_own: probability that a draw falls on the model.
            max_gap_tokens: most tokens between two draws.

        Raises:
            EnvironmentProblem: the engine refuses the pair, with its reason.
        """
        settings = {"junior_model": partner, "prob_senior": prob_own, "max_gap_tokens": max_gap_tokens}
        super().__init__(model, {**options, **engine_arguments(settings)})

    def extra_arguments(self, request: Request) -> dict[str, Any]:
        # The coins follow the problem, as its samples do.
        return {CONFIG_KEY: {"seed": request.seed}}

    def answer(self, output: Any) -> Answer:
        """The completions in one of vLLM's outputs, with the authors of their tokens."""
        answer = super().answer(output)
        masks = [found.authorship_mask for found in sorted(output.outputs, key=lambda found: found.index)]
        if any(mask is None for mask in masks):
            raise AuthorshipError(f"request {output.request_id}: a response came without its authors")
        return WrittenTogether(answer.completions, answer.prompt_tokens, answer.completion_tokens, tuple(masks))

    def responses(self, request: Request, answer: Answer) -> list[SampledResponse]:
        """The responses to a problem, with what the model wrote of each."""
        return [
            dataclasses.replace(sample, own_tokens=sum(mask), own_spans=self._spans(written, mask))
            for sample, written, mask in zip(
                super().responses(request, answer), answer.completions, answer.own, strict=True
            )
        ]

    def _spans(self, written: Completion, mask: Sequence[bool]) -> list[list[int]]:
        found = author_spans(
            written.token_ids,
            ["model" if own else "partner" for own in mask],
            "model",
            lambda ids: self.tokenizer.decode(ids, skip_special_tokens=True),
        )
        return clipped(found, len(written.text))


@dataclasses.dataclass(frozen=True)
class WrittenTogether(Answer):
    """Completions with, for each of their tokens, whether the model wrote it."""

    own: tuple[Sequence[bool], ...] = ()
