"""Exact ROUGE-L of one candidate against many texts, fast enough for a whole run's instructions.

Texts become strings with one code point per token, so that rapidfuzz's bit-parallel LCS compares tokens at C speed. The
F-measure repeats the floating-point operations of the rouge-score package, because decisions at a threshold depend on
the last bit: LCS 7 of lengths 8 and 12 is 0.7000000000000001 there, LCS 7 of lengths 10 and 10 is 0.7.
"""

from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import LCSseq

_TOKEN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789")
_SEPARATORS = bytes(c if c in _TOKEN_BYTES else ord(" ") for c in range(256))
_UNKNOWN = chr(0)
_MAX_TOKENS = 0x10FFFF
_MAX_REMEMBERED = 1 << 17
_ROUNDING = 1e-12


def tokenize(text: str) -> list[bytes]:
    """Lower-cased runs of a-z and 0-9, split as the rouge-score package does without its stemmer."""
    return text.lower().encode("ascii", "replace").translate(_SEPARATORS).split()


class TokenEncoder:
    """Turns texts into strings with one code point per distinct token; equal tokens share a code point."""

    def __init__(self) -> None:
        self._code_points: dict[bytes, str] = {}
        self._remembered: dict[str, str] = {}

    @property
    def full(self) -> bool:
        """Whether a fresh encoder should take over before the code points or the memory for texts run out."""
        return len(self._code_points) > _MAX_TOKENS // 2 or len(self._remembered) > _MAX_REMEMBERED

    def learn(self, text: str) -> str:
        """Encode a text and remember it and its tokens.

        Raises `OverflowError` when more distinct tokens are needed than there are code points.
        """
        encoded = self._remembered.get(text)
        if encoded is None:
            code_points = self._code_points
            encoded = "".join([code_points.get(token) or self._assign(token) for token in tokenize(text)])
            self._remembered[text] = encoded
        return encoded

    def learn_all(self, texts: Sequence[str]) -> list[str]:
        """`learn` each text, at the cost of one dictionary look-up for those seen before."""
        encoded = [self._remembered.get(text) for text in texts]
        return [self.learn(text) if known is None else known for text, known in zip(texts, encoded, strict=True)]

    def look_up(self, text: str) -> str:
        """Encode a text without learning from it: all tokens of no learned text share one code point of their own."""
        encoded = self._remembered.get(text)
        if encoded is None:
            encoded = "".join([self._code_points.get(token, _UNKNOWN) for token in tokenize(text)])
        return encoded

    def _assign(self, token: bytes) -> str:
        if len(self._code_points) >= _MAX_TOKENS:
            raise OverflowError(f"the texts hold more than {_MAX_TOKENS} distinct tokens; compare with fewer texts")
        return self._code_points.setdefault(token, chr(len(self._code_points) + 1))


class RougeIndex:
    """A growing set of texts to compare candidates with."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._encoder = TokenEncoder()
        self._encoded: list[str] = []
        self._lengths: np.ndarray = np.empty(16, dtype=np.int64)
        for text in texts:
            self.add(text)

    def __len__(self) -> int:
        return len(self._encoded)

    def add(self, text: str) -> None:
        """Add one text."""
        encoded = self._encoder.learn(text)
        if len(self) == len(self._lengths):
            self._lengths = np.resize(self._lengths, 2 * len(self))
        self._lengths[len(self)] = len(encoded)
        self._encoded.append(encoded)

    def max_rouge_l(self, candidate: str, *, floor: float = 0.0) -> float:
        """The largest ROUGE-L F-measure of `candidate` against the texts; 0.0 when it does not exceed `floor`."""
        return _max_f_measure(self._encoder.look_up(candidate), self._encoded, self._lengths[: len(self)], floor)


_shared_encoder = TokenEncoder()


def rouge_l(a: str, b: str) -> float:
    """ROUGE-L F-measure of two texts, in 0..1: that of the rouge-score package without stemming. Symmetric."""
    return RougeIndex([a]).max_rouge_l(b)


def max_rouge_l(candidate: str, pool: RougeIndex | Sequence[str], *, floor: float = 0.0) -> float:
    """The largest ROUGE-L F-measure of `candidate` against a pool; 0.0 when it does not exceed `floor`.

    `pool` is a `RougeIndex`, or texts, whose tokens are remembered from call to call. An empty pool gives 0.0; with the
    default `floor` the value is always exact. Raises `TypeError` when `pool` is a single string.
    """
    global _shared_encoder
    if isinstance(pool, RougeIndex):
        return pool.max_rouge_l(candidate, floor=floor)
    if isinstance(pool, str):
        raise TypeError("pool must be a sequence of texts, found a single string")
    if _shared_encoder.full:
        _shared_encoder = TokenEncoder()
    encoder = _shared_encoder
    encoded = encoder.learn_all(pool)
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    return _max_f_measure(encoder.look_up(candidate), encoded, lengths, floor)


def _f_measure(lcs: int, n: int, m: int) -> float:
    precision, recall = lcs / m, lcs / n
    return 2 * precision * recall / (precision + recall)


def _max_f_measure(candidate: str, encoded: list[str], lengths: np.ndarray, floor: float) -> float:
    n = len(candidate)
    if n == 0 or not encoded:
        return 0.0
    least_lcs = 0
    if floor > 0.0:
        # The LCS is at most the shorter text, so length alone bounds the F-measure.
        reachable = 2 * np.minimum(lengths, n) / (lengths + n) > floor - _ROUNDING
        if not reachable.any():
            return 0.0
        encoded, lengths = list(compress(encoded, reachable.tolist())), lengths[reachable]
        least_lcs = int(floor * (int(lengths.min()) + n) / 2 - _ROUNDING)
    lcs = process.cdist([candidate], encoded, scorer=LCSseq.similarity, score_cutoff=least_lcs, dtype=np.int32)[0]
    score = lcs / (lengths + n)
    highest = score.max()
    if highest == 0.0:
        return 0.0
    # Equal ratios may differ in the last bit of the F-measure, so all of them are computed as rouge-score does.
    ties = np.flatnonzero(score > highest - _ROUNDING)
    best = max(_f_measure(common, n, m) for common, m in {(int(lcs[i]), int(lengths[i])) for i in ties})
    return best if best > floor else 0.0
