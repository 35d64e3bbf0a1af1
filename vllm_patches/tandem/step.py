"""What the model runner keeps for one step, and what it counts over many."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch


@dataclasses.dataclass
class Step:
    """One step, from the preparation of its inputs to the sampled tokens.

    ``last_hidden[m]`` are the hidden states, in the order of ``rows_written[m]``, that model m's logits come from; they
    are taken once, by the first call of ``compute_logits`` after the forward pass. ``aligned`` are the batch rows under
    ``word_align='before'``, whose second samples come from ``both_hidden``. ``held`` are, in the lazy mode, the leading
    tokens of each row whose keys and values both models hold after the step.
    """

    num_scheduled: np.ndarray
    rows: np.ndarray
    samples: np.ndarray
    writers: np.ndarray
    aligned: np.ndarray
    held: np.ndarray | None = None
    both_hidden: tuple[torch.Tensor, torch.Tensor] | None = None
    rows_written: list[np.ndarray] = dataclasses.field(default_factory=list)
    last_hidden: list[torch.Tensor | None] | None = None


@dataclasses.dataclass
class TandemStats:
    """Work done since the last reset; the pairs are indexed by author (0 junior, 1 senior). ``joint_passes`` counts the
    steps in which one forward pass was both models'."""

    steps: int = 0
    forwards: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    tokens: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    cached_tokens: int = 0
    resumed_requests: int = 0
    joint_passes: int = 0
