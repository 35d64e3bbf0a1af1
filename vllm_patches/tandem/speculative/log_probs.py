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
    """The junior's log-probs of each request's latest drafts, kept until the senior has verified them.

    That may be several steps later: a step whose token budget is spent leaves running requests out.
    """

    def __init__(self) -> None:
        self._steps: list[LogprobsTensors] = []
        self._of: dict[str, tuple[list[LogprobsTensors], int]] = {}

    def start(self, request_ids: Sequence[str]) -> None:
        """The next drafts belong to these requests, in this order, in place of their last ones."""
        self._steps = []
        self._of.update((request_id, (self._steps, row)) for row, request_id in enumerate(request_ids))

    def add(self, tensors: LogprobsTensors) -> None:
        """Keep what belongs to the next drafted position of every request."""
        self._steps.append(tensors)

    def forget(self, request_id: str) -> None:
        """Drop a request; unknown ids are ignored."""
        self._of.pop(request_id, None)

    def latest(
        self, request_ids: Sequence[str], num_drafts: int, columns: int, device: torch.device
    ) -> LogprobsTensors:
        """(N, K, columns) log-probs of K = ``num_drafts`` drafts of each request; nothing where none were kept, as the
        requests of that step asked for none or for fewer columns."""
        shape = (len(request_ids), num_drafts)
        table = empty_table(len(request_ids) * num_drafts, columns, device)
        tables = [whole.view(*shape, *whole.shape[1:]) for whole in table[:3]]
        drafted: dict[int, tuple[list[LogprobsTensors], list[int], list[int]]] = {}
        for at, request_id in enumerate(request_ids):
            steps, row = self._of.get(request_id, ([], 0))
            if steps:
                _, places, rows = drafted.setdefault(id(steps), (steps, [], []))
                places.append(at)
                rows.append(row)
        for steps, places, rows in drafted.values():
            at = torch.tensor(places).to(device, non_blocking=True)[:, None]
            from_row = torch.tensor(rows).to(device, non_blocking=True)
            drafts = torch.arange(min(num_drafts, len(steps)), device=device)
            for whole, kept in zip(tables, zip(*(step[:3] for step in steps), strict=True), strict=True):
                chosen = torch.stack(kept[: len(drafts)], dim=1)[from_row].to(whole.dtype)
                if whole.ndim == 2:
                    whole[at, drafts] = chosen
                else:
                    common = min(columns, chosen.shape[2])
                    whole[..., :common][at, drafts] = chosen[..., :common]
        return LogprobsTensors(*tables)


def empty_table(rows: int, columns: int, device: torch.device) -> LogprobsTensors:
    """Log-probs of nothing: id 0 at minus infinity."""
    return LogprobsTensors(
        torch.zeros((rows, columns), dtype=torch.int32, device=device),
        torch.full((rows, columns), float("-inf"), device=device),
        torch.zeros(rows, dtype=torch.int32, device=device),
    )
