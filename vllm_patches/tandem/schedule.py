"""Author schedules: who writes the next token, as pure functions of (seed, request, redraw index, emitted tokens).

An author is 1 (senior) or 0 (junior), the values of the authorship mask. Coins come from a counter-based hash, so a
schedule survives preemption, batching and restarts, agrees on every tensor-parallel rank, and can be recomputed by
whoever holds the token ids. Strategies and defaults follow Tandem Reinforcement Learning (arXiv 2606.28166) and its
published code (github.com/CSSLab/Tandem-RLVR); where that code counts steps per engine, we count per request.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

SENIOR, JUNIOR = 1, 0
COIN_BITS = 53
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1
WORD_ALIGNMENTS = ("after", "before")
MAX_TOKENS = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class Strategy:
    """One way of taking turns.

    ``redraws`` and ``toggles`` are called after a token was emitted with (is it a boundary token, number of tokens
    written since the last redraw or toggle, that one included, the parameters). They decide whether the next token's
    author is drawn anew or toggled. Both must use elementwise operators only (``|``, ``&``, ``>=``): the same
    function serves one request with Python scalars and a whole batch with arrays, where the parameters are arrays too.

    Args:
        start: author of the first token, or None when a coin decides.
        boundary: which boundary set the strategy reads: ``word``, ``sentence`` or None.
    """

    start: int | None
    redraws: Callable[[Any, Any, Any], Any] | None = None
    toggles: Callable[[Any, Any, Any], Any] | None = None
    boundary: str | None = None


STRATEGIES: dict[str, Strategy] = {}


def register_strategy(name: str, strategy: Strategy) -> None:
    """Make ``strategy`` available by ``name`` in this process; an engine needs it in each of its processes.

    Raises:
        ValueError: the name is taken by another strategy, or the boundary set is not one that exists.
    """
    if STRATEGIES.get(name, strategy) != strategy:
        raise ValueError(f"selection strategy {name!r} is registered already; choose another name")
    if strategy.boundary not in (None, "word", "sentence"):
        raise ValueError(f"boundary of {name!r} is {strategy.boundary!r}; expected 'word', 'sentence' or None")
    STRATEGIES[name] = strategy


register_strategy(
    "word",
    Strategy(
        start=None,
        redraws=lambda boundary, since, params: boundary | (since >= params.max_gap_tokens),
        boundary="word",
    ),
)
register_strategy("bernoulli", Strategy(start=None, redraws=lambda boundary, since, params: since >= 1))
register_strategy("alternating", Strategy(start=SENIOR, toggles=lambda boundary, since, params: since >= 1))
register_strategy("chunk", Strategy(start=SENIOR, toggles=lambda boundary, since, params: since >= params.chunk_size))
register_strategy(
    "sentence", Strategy(start=SENIOR, toggles=lambda boundary, since, params: boundary, boundary="sentence")
)
register_strategy("senior", Strategy(start=SENIOR))
register_strategy("junior", Strategy(start=JUNIOR))


@dataclasses.dataclass(frozen=True)
class ScheduleParams:
    """What decides a response's authors, besides its tokens.

    Args:
        selection_strategy: name of a registered strategy; ``word`` is the paper's.
        prob_senior: probability in [0, 1] that a coin falls on the senior.
        max_gap_tokens: ``word``: most tokens between two redraws, below 2**31.
        chunk_size: ``chunk``: tokens per turn, below 2**31.
        word_align: ``after`` (the published code): the emission of a boundary token causes the redraw, so a word's
            first piece comes from the old author. ``before``: a sampled boundary token causes the redraw and the new
            author's own sample is emitted instead; needs both models' samples.
        seed: seed of the run, a whole number of 64 bits, with or without a sign.
        request: identity of the response within the run, of the same kind; see ``request_key``.

    Raises:
        ValueError: a value outside its range, or of the wrong type.
    """

    selection_strategy: str = "word"
    prob_senior: float = 0.5
    max_gap_tokens: int = 32
    chunk_size: int = 1
    word_align: str = "after"
    seed: int = 0
    request: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.selection_strategy, str) or self.selection_strategy not in STRATEGIES:
            raise ValueError(
                f"selection_strategy is {self.selection_strategy!r}; expected one of {', '.join(sorted(STRATEGIES))}"
            )
        if not _is_number(self.prob_senior) or not 0 <= self.prob_senior <= 1:
            raise ValueError(f"prob_senior is {self.prob_senior!r}; expected a probability between 0 and 1")
        for name in ("max_gap_tokens", "chunk_size"):
            value = getattr(self, name)
            if not _is_int(value) or not 1 <= value <= MAX_TOKENS:
                raise ValueError(f"{name} is {value!r}; expected a whole number of tokens from 1 to {MAX_TOKENS}")
        if self.word_align not in WORD_ALIGNMENTS:
            raise ValueError(f"word_align is {self.word_align!r}; expected one of {', '.join(WORD_ALIGNMENTS)}")
        if self.word_align == "before" and self.selection_strategy != "word":
            raise ValueError(f"word_align 'before' belongs to strategy 'word', not {self.selection_strategy!r}")
        for name in ("seed", "request"):
            value = getattr(self, name)
            if not _is_int(value) or not -(1 << 63) <= value < 1 << 64:
                raise ValueError(f"{name} is {value!r}; expected a whole number of at most 64 bits")

    @property
    def strategy(self) -> Strategy:
        return STRATEGIES[self.selection_strategy]

    @property
    def has_one_author(self) -> bool:
        """Whether the first token's author certainly writes the whole response."""
        strategy = self.strategy
        certain_coins = strategy.start is None and self.prob_senior in (0, 1)
        return strategy.toggles is None and (strategy.redraws is None or certain_coins)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def mix64(x: int) -> int:
    """Finaliser of SplitMix64 (Steele, Lea and Flood, 2014): a bijection of 64-bit words."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def request_key(*parts: int) -> int:
    """A 63-bit identity from whole numbers, for instance (dataset index, step, sample); order matters."""
    key = len(parts)
    for part in parts:
        key = mix64((key + GOLDEN_GAMMA) & _MASK64 ^ mix64(part & _MASK64))
    return key >> 1


def stream_key(seed: int, request: int) -> int:
    """The 64-bit key of one response's stream of coins."""
    return mix64((mix64((seed + GOLDEN_GAMMA) & _MASK64) + request) & _MASK64)


def coin(key: int, redraw: int) -> int:
    """Coin number ``redraw`` of a stream: a whole number below 2**53, uniform; the senior wins below its threshold."""
    return mix64((key + (redraw + 1) * GOLDEN_GAMMA) & _MASK64) >> (64 - COIN_BITS)


def senior_threshold(prob_senior: float) -> int:
    """The number of coins, of 2**53, that fall on the senior: 0 for probability 0, all for probability 1."""
    return math.ceil(prob_senior * (1 << COIN_BITS))


class AuthorSchedule:
    """The authors of one response. ``author`` is who writes the next token; ``advance`` reports what was emitted."""

    def __init__(self, params: ScheduleParams, boundary_ids: Collection[int] = frozenset()):
        if params.strategy.boundary and not boundary_ids:
            raise ValueError(
                f"strategy {params.selection_strategy!r} needs {params.strategy.boundary} boundary token ids; "
                "build them from the tokenizer with vllm_patches.tandem.boundaries"
            )
        self.params = params
        self.redraws = 0
        self.since = 0
        self._boundary_ids = frozenset(boundary_ids)
        self._key = stream_key(params.seed, params.request)
        self._threshold = senior_threshold(params.prob_senior)
        self.author = self._draw() if params.strategy.start is None else params.strategy.start

    def _draw(self) -> int:
        author = SENIOR if coin(self._key, self.redraws) < self._threshold else JUNIOR
        self.redraws += 1
        self.since = 0
        return author

    def advance(self, token_id: int) -> None:
        """Account for one emitted token."""
        self.since += 1
        if self.params.word_align == "before":
            return
        strategy, boundary = self.params.strategy, token_id in self._boundary_ids
        if strategy.redraws and strategy.redraws(boundary, self.since, self.params):
            self.author = self._draw()
        elif strategy.toggles and strategy.toggles(boundary, self.since, self.params):
            self.author = SENIOR + JUNIOR - self.author
            self.since = 0

    def offer(self, token_id: int) -> int:
        """Show the current author's sample before it is emitted; returns whose sample to emit.

        Only ``word_align='before'`` ever changes the author here: when the sample starts a word, or the run has
        reached its cap, and something was written since the last redraw.
        """
        if self.params.word_align == "before" and self.since > 0:
            if self.params.strategy.redraws(token_id in self._boundary_ids, self.since, self.params):
                self.author = self._draw()
        return self.author


def authorship(
    token_ids: Iterable[int], params: ScheduleParams, boundary_ids: Collection[int] = frozenset()
) -> list[int]:
    """The authorship mask of a response, from its token ids alone: 1 = senior, 0 = junior, one per token.

    Args:
        token_ids: the response from its first token on (for a resumed response, the resumed part included).
        params: the parameters it was decoded with.
        boundary_ids: the strategy's boundary set; may be empty for strategies that read none.

    Raises:
        ValueError: a boundary set is needed and empty, or the parameters ask for ``word_align='before'``, whose
            redraws depend on samples that were not emitted.
    """
    if params.word_align == "before":
        raise ValueError(
            "authorship under word_align='before' depends on samples that were not emitted; read the mask that the "
            "engine returns"
        )
    schedule = AuthorSchedule(params, boundary_ids)
    mask = []
    for token_id in token_ids:
        mask.append(schedule.author)
        schedule.advance(token_id)
    return mask
