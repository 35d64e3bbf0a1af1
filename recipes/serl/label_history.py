"""Track the majority label of each prompt at its last visit; how often labels change shows how far to trust them.

Source: TTRL-Guard (arXiv 2605.19444), the flip rate: the share of prompts, among those seen before, whose label differs
from that of the visit before. Prompts return where they come from a dataset; self-made ones do not.
"""

from collections.abc import Iterable

from recipes.serl.collection import Group
from reward_fns.answer import normal_form, squeeze


class LabelHistory:
    """Last label by row of the dataset."""

    def __init__(self) -> None:
        self._labels: dict[int, str] = {}

    def observe(self, groups: Iterable[Group]) -> dict[str, float]:
        """Take note of the labels of a step; its flip rate and the number of prompts seen before.

        Groups without a label (the original's vote reads no answers) and prompts that never return have no part in it;
        the result is empty when no prompt was seen before.
        """
        flips = []
        for group in groups:
            if group.answer is None or group.instruction.origin != "dataset":
                continue
            label = squeeze(normal_form(group.answer))
            before = self._labels.get(group.instruction.idx)
            if before is not None:
                flips.append(label != before)
            self._labels[group.instruction.idx] = label
        if not flips:
            return {}
        return {"serl/vote/flip_rate": sum(flips) / len(flips), "serl/vote/revisited": float(len(flips))}

    def state_dict(self) -> list[list]:
        """Pairs of row and label, JSON types."""
        return [[idx, label] for idx, label in self._labels.items()]

    def load_state_dict(self, state: list[list]) -> None:
        """Restore `state_dict`."""
        self._labels = {idx: label for idx, label in state}
