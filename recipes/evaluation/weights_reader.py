"""Log-probabilities of given texts by a model's weights, in this process, where no engine tells them."""

import os
from collections.abc import Sequence
from typing import Any

from recipes.errors import EnvironmentProblem


class WeightsReader:
    """A causal language model that reads one text at a time on the processor.

    Args:
        model: folder or hub id.

    Raises:
        EnvironmentProblem: the weights or their tokenizer cannot be loaded.
    """

    def __init__(self, model: str):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
            self._model = AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval()
        except (OSError, ValueError) as error:
            raise EnvironmentProblem(
                f"the weights of {model}, which are to read texts, cannot be loaded: {error}"
            ) from error

    @property
    def model_length(self) -> int:
        """Tokens of the context window."""
        return int(self._model.config.max_position_embeddings)

    def prompt_log_probs(self, token_ids: Sequence[Sequence[int]]) -> list[list[dict[int, float] | None]]:
        """For each sequence the log-probability of every token of it in nats, None for the first."""
        import torch

        before = torch.get_num_threads()
        # Ray gives an actor one thread; the engines wait meanwhile.
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        try:
            return [self._read(list(ids)) for ids in token_ids]
        finally:
            torch.set_num_threads(before)

    def _read(self, ids: list[int]) -> list[dict[int, float] | None]:
        import torch

        with torch.inference_mode():
            rows = self._model(torch.tensor([ids])).logits[0, :-1]
            # Row by row: the whole table in float32 is larger than the model for long texts.
            found = [float(row.float().log_softmax(-1)[token]) for row, token in zip(rows, ids[1:], strict=True)]
        return [None, *({token: value} for token, value in zip(ids[1:], found, strict=True))]
