"""Word handoff: two models write one response in one engine, the author redrawn after each word (`vllm_patches`)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from recipes.evaluation.handoff import author_spans, clipped
from recipes.evaluation.sample_store import Sample
from recipes.evaluation.sampling import Request
from recipes.evaluation.vllm_engine import VllmEngine
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

    def samples(self, problem: str, output: Any) -> list[Sample]:
        completions = sorted(output.outputs, key=lambda found: found.index)
        if any(completion.authorship_mask is None for completion in completions):
            raise AuthorshipError(f"{problem}: a response came without its authors")
        return [
            dataclasses.replace(sample, own_tokens=sum(completion.authorship_mask), own_spans=self._spans(completion))
            for sample, completion in zip(super().samples(problem, output), completions, strict=True)
        ]

    def _spans(self, completion: Any) -> list[list[int]]:
        authors = ["model" if own else "partner" for own in completion.authorship_mask]
        found = author_spans(
            completion.token_ids,
            authors,
            "model",
            lambda ids: self.tokenizer.decode(ids, skip_special_tokens=True),
        )
        return clipped(found, len(completion.text))
