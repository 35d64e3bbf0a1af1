"""Which model runs which tokens of a step: lock-step, or lazily with catch-up. Pure arrays, no vLLM.

``computed[m]`` counts, per request, the leading tokens whose keys and values model m holds. The lazy plan keeps:

I1  before a step ``computed[m] <= start``, the scheduler's own count;
I2  a model that must sample first runs ``[computed[m], end)`` as one causal query;
I3  a KV block enters the prefix cache when both models hold it (``scheduler.py`` learns after every step how far that
    is), so whatever the cache returns is valid for both;
I4  a request that starts or resumes holds ``start`` tokens in both models (whole cached blocks, hence I3);
I5  of a model's queries in a step, all that have nothing to catch up run in one forward pass: the scheduler caches
    prompt blocks when it allots them, so such a query may read blocks that another one of the same step writes.

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

    ``passes[i]`` numbers, from 0, the forward pass that holds query i. Within a pass the shortest query comes first,
    since several attention backends split a batch into decodes, then prefills.
    """

    rows: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    passes: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return self.ends - self.starts

    @property
    def offsets(self) -> np.ndarray:
        """(N + 1,) where each row's tokens begin in the flattened run."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def split(self) -> list[ModelRun]:
        """One run for each forward pass, in order."""
        cuts = [0, *(np.flatnonzero(np.diff(self.passes)) + 1), len(self.rows)]
        return [
            ModelRun(self.rows[a:b], self.starts[a:b], self.ends[a:b], self.passes[a:b])
            for a, b in zip(cuts, cuts[1:], strict=False)
        ]


def model_run(
    rows: np.ndarray, starts: np.ndarray, ends: np.ndarray, scheduled: np.ndarray, max_tokens: int
) -> ModelRun:
    """Distribute the queries of one model over forward passes of at most ``max_tokens`` tokens each.

    Args:
        rows, starts, ends: (N,) batch rows and the positions that the model runs of each.
        scheduled: (N,) where the scheduler's own share of each query begins; ``starts < scheduled`` is catch-up.

    All queries without catch-up are in the first pass: the scheduler allotted them, so they fit. Catch-up fills that
    pass up and takes further ones.
    """
    lengths, catches_up = ends - starts, starts < scheduled
    passes = np.zeros(len(rows), dtype=np.int64)
    if lengths.sum() > max_tokens:
        held, last = int(lengths[~catches_up].sum()), 0
        for query in np.argsort(lengths, kind="stable"):
            if catches_up[query]:
                if held and held + lengths[query] > max_tokens:
                    held, last = 0, last + 1
                held += lengths[query]
                passes[query] = last
    order = np.lexsort((lengths, passes))
    return ModelRun(rows[order], starts[order], ends[order], passes[order])


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
    max_tokens: int,
) -> LazyPlan:
    """Plan one step.

    Args:
        starts, ends: (B,) the scheduled positions ``[start, end)`` of each row.
        samples: (B,) whether the row's last token's logits are sampled, i.e. the chunk ends its known tokens.
        authors: (B,) who writes the next token.
        computed: (2, B) tokens whose keys and values each model holds.
        alone: (B,) whether one author writes the whole response; the other model then runs the prompt alone.
        max_lag: most tokens by which the idle model of any other row may be behind after the step.
        max_tokens: most tokens in one forward pass.

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
        own = (active, computed[model, active], ends[active], starts[active])
        runs.append(model_run(*own, max_tokens) if len(active) else None)
    return LazyPlan(writers, (runs[JUNIOR], runs[SENIOR]), after)
