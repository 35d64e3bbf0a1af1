"""The writer's log-probs: the junior's are taken when it drafts, the senior's when it verifies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.sampler import Sampler


def log_probs_of(logits: torch.Tensor, tokens: torch.Tensor, number: int, mode: str) -> LogprobsTensors:
    """Log-probs of ``tokens`` (N,) and of the ``number`` likeliest, from logits (N, V), raw or processed as the
    engine's ``logprobs_mode`` says; the logits themselves where it asks for those."""
    values = logits.float() if mode.endswith("logits") else Sampler.compute_logprobs(logits)
    return Sampler.gather_logprobs(values, number, tokens)


class DraftLogProbs:
    """The junior's log-probs of its latest drafts, kept until the senior has verified them."""

    def __init__(self) -> None:
        self._steps: list[LogprobsTensors] = []
        self._row_of: dict[str, int] = {}

    def start(self, request_ids: Sequence[str]) -> None:
        """Forget the last drafts; the next ones belong to these requests, in this order."""
        self._steps = []
        self._row_of = {request_id: row for row, request_id in enumerate(request_ids)}

    def add(self, tensors: LogprobsTensors) -> None:
        """Keep what belongs to the next drafted position of every request."""
        self._steps.append(tensors)

    def place(
        self,
        table: LogprobsTensors,
        request_ids: Sequence[str],
        requests: torch.Tensor,
        positions: torch.Tensor,
        width: int,
    ) -> None:
        """Write the drafts' log-probs into ``table``, whose rows are ``request * width + position``.

        Args:
            table: columns: the token itself, then the likeliest; may be wider than what was kept, as another request
                may ask for more.
            request_ids: the requests of this step, which may stand in another order than when they were drafted.
            requests, positions: (M,) the drafts to write. Where none were kept, no request of that step asked for any.
        """
        if not len(requests) or not self._steps:
            return
        rows = torch.tensor([self._row_of.get(request_id, -1) for request_id in request_ids], device=requests.device)
        target = requests * width + positions
        for whole, kept in zip(table[:3], zip(*(step[:3] for step in self._steps), strict=True), strict=True):
            chosen = torch.stack(kept, dim=1)[rows[requests], positions]
            if whole.ndim == 1:
                whole[target] = chosen.to(whole.dtype)
            else:
                columns = min(whole.shape[1], chosen.shape[1])
                whole[target, :columns] = chosen[:, :columns].to(whole.dtype)


def empty_table(rows: int, columns: int, device: torch.device) -> LogprobsTensors:
    """Log-probs of nothing: id 0 at minus infinity."""
    return LogprobsTensors(
        torch.zeros((rows, columns), dtype=torch.int32, device=device),
        torch.full((rows, columns), float("-inf"), device=device),
        torch.zeros(rows, dtype=torch.int32, device=device),
    )
