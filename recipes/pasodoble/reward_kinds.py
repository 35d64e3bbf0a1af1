"""The Proposer's reward as other self-play methods have it, under one signature.

`kind` changes the Proposer's reward alone: which questions the Solver learns from and which rounds are skipped stays
PasoDoble's.
"""

import math
from typing import Literal, get_args

from recipes.pasodoble.reward import proposer_reward

RewardKind = Literal[
    "pasodoble", "r_zero", "r_zero_code", "r_few", "absolute_zero", "absolute_zero_code", "learnability", "spice"
]
REWARD_KINDS: tuple[RewardKind, ...] = get_args(RewardKind)
REPETITION_KINDS = frozenset({"r_zero", "r_zero_code", "r_few"})
"""Kinds that need the share of the batch in the proposal's cluster."""


def reward_of_kind(
    kind: RewardKind,
    p: float,
    *,
    valid: bool = True,
    diversity: float = 1.0,
    repetition: float = 0.0,
    repetition_weight: float = 1.0,
    tau_low: float = 0.2,
    tau_div: float = 0.3,
    w: float = 0.2,
) -> float:
    r"""Compute the reward of one proposal with pass rate :math:`p`, in [0, 1].

    ================== =========================================== =================
    kind               valid                                       invalid
    ================== =========================================== =================
    pasodoble          :func:`recipes.pasodoble.reward`            0
    r_zero             max(0, 1 - 2 abs(p - 1/2) - rep) (paper)    0
    r_zero_code        min(p, 1 - p) - rep                         -1 - rep
    r_few              1 - 2 abs(p - 1/2) - lambda rep             0
    absolute_zero      1 - p; 0 at p = 0 and p = 1 (paper)         -1
    absolute_zero_code 1 - p; -0.5 at p = 0 and p = 1              -1
    learnability       p (1 - p)                                   0
    spice              exp(-(p (1 - p) - 0.25)^2 / 0.02)           -0.1
    ================== =========================================== =================

    Args:
        valid: whether the proposal passed the sanity check.
        diversity: share of the history that the question is unlike; `pasodoble` alone uses it.
        repetition: share of the batch in the question's cluster (:mod:`recipes.pasodoble.repetition`).
        repetition_weight: lambda of `r_few`.

    Raises:
        ValueError: an unknown kind, or a pass rate outside [0, 1].
    """
    if not 0 <= p <= 1:
        raise ValueError(f"pass_rate must lie in [0, 1], got {p}")
    middle = 1 - 2 * abs(p - 0.5)
    extreme = p in (0, 1)
    match kind:
        case "pasodoble":
            return proposer_reward(p, diversity, tau_low=tau_low, tau_div=tau_div, w=w) if valid else 0.0
        case "r_zero":
            return max(0.0, middle - repetition) if valid else 0.0
        case "r_zero_code":
            return (min(p, 1 - p) if valid else -1.0) - repetition
        case "r_few":
            return middle - repetition_weight * repetition if valid else 0.0
        case "absolute_zero":
            return (0.0 if extreme else 1 - p) if valid else -1.0
        case "absolute_zero_code":
            return (-0.5 if extreme else 1 - p) if valid else -1.0
        case "learnability":
            return p * (1 - p) if valid else 0.0
        case "spice":
            return math.exp(-((p * (1 - p) - 0.25) ** 2) / 0.02) if valid else -0.1
    raise ValueError(f"the kind of reward must be one of {', '.join(REWARD_KINDS)}, got {kind!r}")
