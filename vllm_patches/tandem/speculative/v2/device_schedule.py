"""The author schedules of all request slots as tensors: bit for bit the authors of ``schedule.AuthorSchedule``.

V2 keeps drafted tokens on the device and gives the host none of them, so who writes what follows a draft is computed
where the drafts are. Nothing here waits for the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace

import torch

from vllm_patches.tandem.schedule import (
    COIN_BITS,
    GOLDEN_GAMMA,
    STRATEGIES,
    AuthorSchedule,
    ScheduleParams,
    senior_threshold,
    stream_key,
)
from vllm_patches.tandem.speculative.noise import mix64_of, signed64


@dataclasses.dataclass(frozen=True)
class Slots:
    """Schedules of N requests, (N,) int64 each: who writes next, tokens since the last redraw or toggle, redraws so
    far; and what does not change: key of the coins, the senior's threshold, strategy by number, its two sizes."""

    author: torch.Tensor
    since: torch.Tensor
    redraws: torch.Tensor
    key: torch.Tensor
    threshold: torch.Tensor
    strategy: torch.Tensor
    max_gap_tokens: torch.Tensor
    chunk_size: torch.Tensor


class DeviceSchedules:
    """One schedule per request slot of the engine.

    Args:
        boundary_ids: boundary token ids by kind (``word``, ``sentence``).
        vocab_size: token ids are below this.
        num_slots: most requests at a time.
    """

    def __init__(
        self, boundary_ids: Mapping[str, Iterable[int]], vocab_size: int, num_slots: int, device: torch.device
    ):
        self._ids = {kind: frozenset(ids) for kind, ids in boundary_ids.items()}
        self._is_boundary = {None: torch.zeros(vocab_size, dtype=torch.bool, device=device)}
        for kind, ids in self._ids.items():
            mask = torch.zeros(vocab_size, dtype=torch.bool)
            mask[sorted(ids)] = True
            self._is_boundary[kind] = mask.to(device)
        self._names: list[str] = []
        self._table = torch.zeros((len(dataclasses.fields(Slots)), num_slots), dtype=torch.int64, device=device)

    def start(self, slots: Sequence[int], requests: Sequence[tuple[ScheduleParams, Sequence[int]]]) -> None:
        """Put schedules into ``slots``, which are different: of each request the parameters, and the tokens of its
        response that were written earlier."""
        columns = [self._column(*request) for request in requests]
        device = self._table.device
        at = torch.tensor(slots, dtype=torch.int64).to(device, non_blocking=True)
        self._table[:, at] = torch.tensor(columns, dtype=torch.int64).T.to(device, non_blocking=True)

    def _column(self, params: ScheduleParams, emitted: Sequence[int]) -> list[int]:
        one = AuthorSchedule(params, self._ids.get(params.strategy.boundary, frozenset()))
        for token_id in emitted:
            one.advance(token_id)
        if params.selection_strategy not in self._names:
            self._names.append(params.selection_strategy)
        return [
            one.author,
            one.since,
            one.redraws,
            signed64(stream_key(params.seed, params.request)),
            senior_threshold(params.prob_senior),
            self._names.index(params.selection_strategy),
            params.max_gap_tokens,
            params.chunk_size,
        ]

    def of(self, slots: torch.Tensor) -> Slots:
        """The schedules in ``slots`` (N,)."""
        return Slots(*self._table[:, slots])

    def ahead(self, now: Slots, drafts: torch.Tensor) -> list[Slots]:
        """The schedules after 0, 1, ... K of ``drafts`` (N, K)."""
        states = [now]
        for tokens in drafts.unbind(dim=1):
            states.append(self._after(states[-1], tokens))
        return states

    def commit(self, slots: torch.Tensor, ahead: list[Slots], emitted: torch.Tensor, counts: torch.Tensor) -> None:
        """Advance ``slots`` (N,) over the first ``counts`` (N,) of ``emitted`` (N, K + 1): drafts, then one token that
        may differ from its draft."""
        last = (counts - 1).clamp(min=0)
        before = Slots(*(_pick(ahead, field.name, last) for field in dataclasses.fields(Slots)))
        after = self._after(before, emitted.gather(1, last[:, None])[:, 0].clamp(min=0))
        for row, name in enumerate(("author", "since", "redraws")):
            self._table[row, slots] = torch.where(counts > 0, getattr(after, name), getattr(ahead[0], name))

    def _after(self, now: Slots, tokens: torch.Tensor) -> Slots:
        """The schedules after one more token each, ``tokens`` (N,)."""
        since = now.since + 1
        drawn, toggled = (torch.zeros_like(since, dtype=torch.bool) for _ in range(2))
        params = SimpleNamespace(max_gap_tokens=now.max_gap_tokens, chunk_size=now.chunk_size)
        for number, name in enumerate(self._names):
            strategy, mine = STRATEGIES[name], now.strategy == number
            boundary = self._is_boundary[strategy.boundary][tokens]
            if strategy.redraws:
                drawn = drawn | mine & strategy.redraws(boundary, since, params)
            if strategy.toggles:
                toggled = toggled | mine & strategy.toggles(boundary, since, params)
        other = torch.where(toggled, 1 - now.author, now.author)
        return dataclasses.replace(
            now,
            author=torch.where(drawn, _coin_authors(now), other),
            since=torch.where(drawn | toggled, 0, since),
            redraws=now.redraws + drawn,
        )


def _coin_authors(now: Slots) -> torch.Tensor:
    words = mix64_of(now.key + (now.redraws + 1) * signed64(GOLDEN_GAMMA))
    coins = words >> (64 - COIN_BITS) & (1 << COIN_BITS) - 1  # a logical shift of a signed word
    return (coins < now.threshold).to(torch.int64)


def _pick(states: list[Slots], name: str, index: torch.Tensor) -> torch.Tensor:
    return torch.stack([getattr(state, name) for state in states], dim=1).gather(1, index[:, None])[:, 0]
