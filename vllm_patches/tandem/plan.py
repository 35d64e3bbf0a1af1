"""Which model runs which tokens of a step: lock-step, or lazily with catch-up. Pure arrays, no vLLM.

``computed[m]`` counts, per request, the leading tokens whose keys and values model m holds. The lazy plan keeps:

I1  before a step ``computed[m] <= start``, the scheduler's own count;
I2  a model that must sample first runs ``[computed[m], end)`` as one causal query;
I3  a KV block enters the prefix cache when both models hold it (``scheduler.py`` is told how far that is after every
    step), so whatever the cache hands out is valid for both;
I4  a request that starts or resumes holds ``start`` tokens in both models (whole cached blocks, hence I3).

Prefill, meaning more than one scheduled token or a chunk that does not end the known tokens, runs both models. A model
that falls ``max_lag`` tokens behind catches up, unless its turn can never come.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from vllm_patches.tandem.schedule import JUNIOR, SENIOR


@dataclasses.dataclass(frozen=True)
class ModelRun:
    """The token ranges one model runs in a step: of batch row ``rows[i]`` the positions ``[starts[i], ends[i])``.

    Shortest query first, since several attention backends split a batch into decodes, then prefills.
    """

    rows: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return self.ends - self.starts

    @property
    def offsets(self) -> np.ndarray:
        """(N + 1,) where each row's tokens begin in the flattened run."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def pieces(self, max_tokens: int) -> list[ModelRun]:
        """The run in pieces of at most ``max_tokens`` tokens, in order; a longer query is a piece of its own."""
        if self.lengths.sum() <= max_tokens:
            return [self]
        cuts, held = [0], 0
        for row, length in enumerate(self.lengths):
            if held and held + length > max_tokens:
                cuts.append(row)
                held = 0
            held += length
        cuts.append(len(self.rows))
        return [
            ModelRun(self.rows[a:b], self.starts[a:b], self.ends[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)
        ]


@dataclasses.dataclass(frozen=True)
class LazyPlan:
    """One step: each row's writer (B,), each model's run (indexed by author, None when idle), and the new counts."""

    writers: np.ndarray
    runs: tuple[ModelRun | None, ModelRun | None]
    computed: np.ndarray


def writers_of(authors: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """(B,) the author where a row samples, the senior where it does not (its logits are discarded)."""
    return np.where(samples, authors, SENIOR)


def plan_lazy(
    starts: np.ndarray,
    ends: np.ndarray,
    samples: np.ndarray,
    authors: np.ndarray,
    computed: np.ndarray,
    alone: np.ndarray,
    max_lag: int,
) -> LazyPlan:
    """Plan one step.

    Args:
        starts, ends: (B,) the scheduled positions ``[start, end)`` of each row.
        samples: (B,) whether the row's last token's logits are sampled, i.e. the chunk ends its known tokens.
        authors: (B,) who writes the next token.
        computed: (2, B) tokens whose keys and values each model holds.
        alone: (B,) whether one author writes the whole response; the other model then runs the prompt alone.
        max_lag: most tokens by which the idle model of any other row may be behind after the step.

    Raises:
        RuntimeError: I1 is broken; the step would read keys and values that no model wrote.
    """
    if (computed > starts).any():
        row = int(np.argmax((computed > starts).any(axis=0)))
        raise RuntimeError(
            f"batch row {row} starts at token {starts[row]}, but the models hold {computed[:, row].tolist()} tokens"
        )
    writers = writers_of(authors, samples)
    lag = ends - computed.min(axis=0)
    both = (ends - starts > 1) | ~samples | (~alone & (lag > max_lag))
    runs, after = [], computed.copy()
    for model in (JUNIOR, SENIOR):
        active = np.flatnonzero(both | (writers == model))
        after[model, active] = ends[active]
        active = active[np.argsort(ends[active] - computed[model, active], kind="stable")]
        runs.append(ModelRun(active, computed[model, active], ends[active]) if len(active) else None)
    return LazyPlan(writers, (runs[JUNIOR], runs[SENIOR]), after)
