"""Track the majority label of each prompt over its visits: how often labels change shows how far to trust them.

Source: TTRL-Guard (arXiv 2605.19444; specs/extensions, section 2). A prompt flips when its label differs from that of
the visit before; the flip rate is the share of flips among the prompts seen before. Prompts return where they come from
a dataset; self-made ones do not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from recipes.serl.collection import Group
from reward_fns.answer import normal_form, squeeze
from reward_fns.equivalence import NeedsAlgebra, compare, refuse_algebra

KEPT_VISITS, WINDOW = 20, 5
SURE = 0.6
"""Majority share above which a flip, or the absence of any, makes a label suspect."""
FLIP, SURE_FLIP, NEVER_FLIPPED, FLOOR = 0.5, 0.7, 0.85, 0.1
MOST_NEVER_FLIPPED = 5


@dataclass
class Visits:
    """The last visits of a prompt.

    Attributes:
        labels: majority labels in normal form, the latest last; one that equals the label before is written like it.
        shares: of the answers that gave them, in 0..1.
        times_lowered: how often the prompt was weighted less because it never flipped.
    """

    labels: list[str] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    times_lowered: int = 0

    def add(self, label: str, share: float) -> None:
        """Take note of a visit; only the last `KEPT_VISITS` stay."""
        if self.labels and _same(self.labels[-1], label):
            label = self.labels[-1]
        self.labels = [*self.labels, label][-KEPT_VISITS:]
        self.shares = [*self.shares, share][-KEPT_VISITS:]

    @property
    def flipped(self) -> bool:
        """Whether the last visit changed the label."""
        return len(self.labels) > 1 and self.labels[-1] != self.labels[-2]

    @property
    def suspiciously_calm(self) -> bool:
        """Whether one label stood in at least `WINDOW` visits, on average with a large share."""
        recent = self.shares[-WINDOW:]
        return len(recent) == WINDOW and len(set(self.labels)) == 1 and sum(recent) / WINDOW > SURE


def flip_weight(visits: Visits) -> float:
    """The weight in 0.1..1 of a prompt's advantages after its last visit (TTRL-Guard's FRS).

    Half after a flip, 0.35 when a large share of the answers agree on the new label; 0.85 for a prompt that never
    flipped in at least five visits in which a large share agreed, at most five times.
    """
    weight = 1.0 - FLIP * visits.flipped
    if visits.flipped and visits.shares[-1] > SURE:
        weight *= SURE_FLIP
    if visits.suspiciously_calm and visits.times_lowered < MOST_NEVER_FLIPPED:
        weight *= NEVER_FLIPPED
    return max(FLOOR, weight)


class LabelHistory:
    """Visits by row of the dataset."""

    def __init__(self) -> None:
        self._visits: dict[int, Visits] = {}

    def observe(self, groups: Iterable[Group]) -> dict[str, float]:
        """Take note of the labels of a step; its flip rate and the number of prompts seen before.

        Groups without a label (the original's vote reads no answers) and prompts that never return have no part in it;
        the result is empty when no prompt was seen before.
        """
        flips = []
        for group in groups:
            if not _returns(group):
                continue
            visits = self._visits.setdefault(group.instruction.idx, Visits())
            visits.add(squeeze(normal_form(group.answer or "")), group.agreement)
            if len(visits.labels) > 1:
                flips.append(visits.flipped)
        if not flips:
            return {}
        return {"serl/vote/flip_rate": sum(flips) / len(flips), "serl/vote/revisited": float(len(flips))}

    def weights(self, groups: Sequence[Group]) -> dict[str, float]:
        """`flip_weight` of each group that `observe` has seen in this step, by its handle; 1 for the others.

        To be called once per step: it counts how often a prompt was lowered because it never flipped.
        """
        found = {}
        for group in groups:
            visits = self._visits.get(group.instruction.idx) if _returns(group) else None
            found[group.handle] = flip_weight(visits) if visits is not None else 1.0
            if visits is not None and visits.suspiciously_calm:
                visits.times_lowered += 1
        return found

    def state_dict(self) -> list[list]:
        """Row, labels, shares and the number of times it was lowered; JSON types."""
        return [[idx, seen.labels, seen.shares, seen.times_lowered] for idx, seen in self._visits.items()]

    def load_state_dict(self, state: Iterable[Sequence]) -> None:
        """Restore `state_dict`; of earlier versions, which kept row and label alone, the label."""
        self._visits = {idx: Visits(*rest) if len(rest) > 1 else Visits([rest[0]], [0.0]) for idx, *rest in state}


def _same(before: str, label: str) -> bool:
    """Whether two labels are one answer by the rule of the vote, as far as it is decided without algebra."""
    try:
        return compare(before, label, refuse_algebra).same
    except NeedsAlgebra:
        return False


def _returns(group: Group) -> bool:
    return group.answer is not None and group.instruction.origin == "dataset"
