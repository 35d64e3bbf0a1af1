"""Word handoff: two models write one response in one engine, the author redrawn after each word (`vllm_patches`)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

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
        masks = [completion.authorship_mask for completion in sorted(output.outputs, key=lambda found: found.index)]
        if any(mask is None for mask in masks):
            raise AuthorshipError(f"{problem}: a response came without its authors")
        return [
            dataclasses.replace(sample, own_tokens=sum(mask))
            for sample, mask in zip(super().samples(problem, output), masks, strict=True)
        ]
