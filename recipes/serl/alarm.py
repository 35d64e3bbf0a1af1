"""An alarm when the votes of several steps in a row are so unanimous that the model may answer everything alike."""

from collections.abc import Sequence


class CollapseAlarm:
    """Counts steps whose mean agreement, dropped groups included, exceeds `agreement`; `steps` in a row raise it.

    A model that has learnt to give one answer to every question earns full reward from its own vote; the difficulty
    filter then drops its groups, so the trained rewards do not show it and the agreement of all groups does.
    """

    def __init__(self, agreement: float, steps: int) -> None:
        self.agreement = agreement
        self.steps = steps
        self._in_a_row = 0

    @property
    def message(self) -> str:
        """What the alarm says."""
        return (
            f"mean agreement was above {self.agreement} for {self._in_a_row} steps in a row: "
            "the model may have collapsed to one answer, or the prompts are too easy for it"
        )

    def update(self, agreements: Sequence[float]) -> bool:
        """Take in the agreements of a step; whether the alarm is on. A step without groups changes nothing."""
        if agreements:
            high = sum(agreements) / len(agreements) > self.agreement
            self._in_a_row = self._in_a_row + 1 if high else 0
        return self._in_a_row >= self.steps

    def state_dict(self) -> dict:
        """The count, for the checkpoint."""
        return {"in_a_row": self._in_a_row}

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict`."""
        self._in_a_row = state["in_a_row"]
