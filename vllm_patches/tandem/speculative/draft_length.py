"""How many tokens the junior drafts in a round: chosen from what became of earlier drafts, within a bound.

The text does not depend on it (``verify``), so it may follow whatever is measured.
"""

from __future__ import annotations

from vllm_patches.tandem.speculative.round import Outcome

MEMORY = 2000  # drafts after which an observation has lost about two thirds of its weight
EVERY = 200  # drafts between two choices


def tokens_per_round(num_drafts: int, stands: float, senior: float) -> float:
    """Expected tokens of a round.

    Args:
        num_drafts: K.
        stands: probability that a round goes on after a draft, the junior writing or the senior agreeing.
        senior: probability that the senior writes the token after the drafts.
    """
    return sum(stands**k for k in range(num_drafts)) + senior * stands**num_drafts


def best_length(bound: int, stands: float, senior: float, cost_ratio: float) -> int:
    """The number of drafts, 1 to ``bound``, with the most tokens for what a round costs: one pass of the senior and K
    of the junior, each ``cost_ratio`` of one. Reading the weights is what a pass costs, not the few tokens in it."""
    gain = {k: tokens_per_round(k, stands, senior) / (1 + cost_ratio * k) for k in range(1, bound + 1)}
    return max(gain, key=gain.get)


class DraftLength:
    """The current number of drafts, from 1 to ``bound``; it begins at the bound.

    Args:
        bound: most drafts in a round.
        adapts: False keeps the bound.
    """

    def __init__(self, bound: int, adapts: bool = True):
        self.bound = self.current = bound
        self._adapts = adapts
        self._reached = self._tested = self._failed = 0.0
        self._since_choice = 0

    def observe(self, outcome: Outcome, cost_ratio: float) -> None:
        """Learn from one step; ``cost_ratio`` is a junior's pass in passes of the senior."""
        fading = max(0.0, 1 - outcome.reached / MEMORY)
        self._reached = self._reached * fading + outcome.reached
        self._tested = self._tested * fading + outcome.tested
        self._failed = self._failed * fading + outcome.tested - outcome.passed
        self._since_choice += outcome.reached
        if self._adapts and self._since_choice >= EVERY:
            self._since_choice = 0
            stands, senior = 1 - self._failed / self._reached, self._tested / self._reached
            self.current = best_length(self.bound, stands, senior, cost_ratio)
