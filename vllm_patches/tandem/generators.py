"""Seeded sampling that does not depend on the other requests of the batch.

Symptoms in stock vLLM 0.28 on a CPU: a seeded request whose prompt is computed in chunks fails ("CPU Generator does not
use offset"), because vLLM samples the unfinished chunk, discards the sample and rewinds the generator; and a seeded
request beside unseeded ones is not sampled from its seed at all, because the CPU sampler looks at the generators only
when every row has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager

import torch


class ScratchGenerator(torch.Generator):
    """A generator for samples that do not count: rewinding it has no effect and is no error."""

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> None:
        pass


class GeneratorGuard:
    """Replaces generators whose state must not change, and on a CPU supplies those that unseeded rows lack."""

    def __init__(self, device: torch.device):
        self._fill = device.type == "cpu"
        self._scratch = ScratchGenerator(device=device)
        self._scratch.manual_seed(torch.initial_seed() % (1 << 63))

    @contextmanager
    def still(self, generators: dict[int, torch.Generator], rows: Iterable[int], num_rows: int):
        """Sample without changing the state of these batch rows' generators.

        Args:
            generators: the batch's seeded generators by row; altered within, restored after.
            rows: rows whose sample will be discarded.
            num_rows: rows in the batch.
        """
        if not generators:
            yield
            return
        own = dict(generators)
        replaced = set(rows) & own.keys()
        if self._fill:
            replaced |= set(range(num_rows)) - own.keys()
        generators.update(dict.fromkeys(replaced, self._scratch))
        try:
            yield
        finally:
            generators.clear()
            generators.update(own)
