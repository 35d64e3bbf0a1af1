"""An alarm for responses that grow: step rewards add up, so more steps can earn more without being better."""

from collections import deque
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from recipes.common.settings import Count


@dataclass(frozen=True)
class LengthAlarmSettings:
    """When growing responses raise the alarm.

    Attributes:
        baseline_steps: first training steps, whose mean response is the baseline.
        window: training steps of the moving mean.
        factor: growth of tokens or reasoning steps per response over the baseline that raises the alarm.
    """

    baseline_steps: Count = 10
    window: Count = 5
    factor: Annotated[float, Gt(1)] = 1.5


class LengthAlarm:
    """Compares a moving mean of response length with the mean of the first training steps."""

    def __init__(self, settings: LengthAlarmSettings):
        self.settings = settings
        self._count = 0
        self._totals = [0.0, 0.0]
        self._recent: deque[tuple[float, float]] = deque(maxlen=settings.window)

    def update(self, tokens: float, steps: float) -> dict[str, float]:
        """Add one training step's mean tokens and reasoning steps per response.

        Returns:
            `token_growth`, `step_growth` (1.0 while the baseline is measured) and `alarm` (1.0 when either exceeds
            the factor).
        """
        self._recent.append((tokens, steps))
        if self._count < self.settings.baseline_steps:
            self._count += 1
            self._totals = [self._totals[0] + tokens, self._totals[1] + steps]
            return {"token_growth": 1.0, "step_growth": 1.0, "alarm": 0.0}
        growth = []
        for position, total in enumerate(self._totals):
            recent = sum(pair[position] for pair in self._recent) / len(self._recent)
            growth.append(recent / (total / self._count) if total > 0 else 1.0)
        return {
            "token_growth": growth[0],
            "step_growth": growth[1],
            "alarm": float(max(growth) > self.settings.factor),
        }

    def state_dict(self) -> dict:
        """JSON-ready state."""
        return {"count": self._count, "totals": list(self._totals), "recent": [list(pair) for pair in self._recent]}

    def load_state_dict(self, state: dict) -> None:
        """Continue from `state_dict`."""
        self._count, self._totals = int(state["count"]), [float(total) for total in state["totals"]]
        self._recent = deque(((float(t), float(s)) for t, s in state["recent"]), maxlen=self.settings.window)
