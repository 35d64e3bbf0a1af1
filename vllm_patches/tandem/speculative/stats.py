"""What the speculative mode counts, and what follows from it."""

from __future__ import annotations

import dataclasses

from vllm_patches.tandem.speculative.round import Outcome


@dataclasses.dataclass
class SpeculativeStats:
    """Work done since the last reset; ``tandem_stats`` of the worker returns it.

    Attributes:
        outcome: what became of the drafts.
        cost_ratio: a pass of the junior in passes of the senior, by the bytes of their weights.
        acceptance: share of the drafts on the senior's turns that it agreed with.
        emitted_per_round: tokens per round and request.
        cost_per_token: passes of the senior per emitted token, the junior's counted by ``cost_ratio``; what a machine
            costs that spends its time reading weights, against 1 for the senior alone.
    """

    steps: int = 0
    outcome: Outcome = dataclasses.field(default_factory=Outcome)
    cached_tokens: int = 0
    resumed_requests: int = 0
    cost_ratio: float = 0.0
    acceptance: float = 0.0
    emitted_per_round: float = 0.0
    cost_per_token: float = 0.0

    def add(self, outcome: Outcome, cost_ratio: float) -> None:
        """Account for one step."""
        self.steps += 1
        self.cost_ratio = cost_ratio
        self.outcome = total = self.outcome + outcome
        self.acceptance = total.passed / max(1, total.tested)
        self.emitted_per_round = total.emitted / max(1, total.rounds)
        self.cost_per_token = (total.rounds + cost_ratio * total.drafted) / max(1, total.emitted)
