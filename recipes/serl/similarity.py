"""Compute the exact ROUGE-L of one candidate against many texts, fast enough for a whole run's instructions.

The rouge-score package, which the original uses, sees a-z and 0-9 alone: two Russian questions with the same digits are
equal to it, and so are `x^2+3x-4` and `x^2-3x+4`. By default words of all scripts and the signs of formulas are tokens.

Texts become strings with one code point per token, so that rapidfuzz's bit-parallel LCS compares tokens at C speed. The
F-measure repeats the floating-point operations of the rouge-score package, because decisions at a threshold depend on
the last bit: LCS 7 of lengths 8 and 12 is 0.7000000000000001 there, LCS 7 of lengths 10 and 10 is 0.7.
"""

import re
from collections.abc import Iterable
from itertools import compress
from typing import Literal

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import LCSseq

Convention = Literal["default", "reference"]
# A word or number in any script, a character of a script without spaces, or a sign of a formula.
_SPACELESS = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+|[-+*/=<>^±×÷≤≥≠]|(?<=[\d)])!")
_TOKEN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789")
_SEPARATORS = bytes(c if c in _TOKEN_BYTES else ord(" ") for c in range(256))
_UNKNOWN = chr(0)
_ROUNDING = 1e-12


def tokenize(text: str, convention: Convention = "default") -> list[str] | list[bytes]:
    """Split into lower-cased tokens; under `reference` runs of a-z and 0-9, as rouge-score does without its stemmer."""
    if convention == "default":
        return _TOKEN.findall(text.lower())
    return text.lower().encode("ascii", "replace").translate(_SEPARATORS).split()


class RougeIndex:
    """A growing set of texts to compare candidates with; each distinct token in it has a code point of its own."""

    def __init__(self, texts: Iterable[str] = (), convention: Convention = "default") -> None:
        self._convention: Convention = convention
        self._code_points: dict[str | bytes, str] = {}
        self._encoded: list[str] = []
        self._lengths: np.ndarray = np.empty(16, dtype=np.int64)
        for text in texts:
            self.add(text)

    def __len__(self) -> int:
        return len(self._encoded)

    def add(self, text: str) -> None:
        """Add one text.

        Raises:
            ValueError: more distinct tokens than there are code points.
        """
        known = self._code_points
        encoded = "".join([known.setdefault(token, chr(len(known) + 1)) for token in tokenize(text, self._convention)])
        if len(self) == len(self._lengths):
            self._lengths = np.resize(self._lengths, 2 * len(self))
        self._lengths[len(self)] = len(encoded)
        self._encoded.append(encoded)

    def max_rouge_l(self, candidate: str, *, floor: float = 0.0) -> float:
        """Compute the largest ROUGE-L F-measure of a candidate against the texts; 0.0 unless it exceeds `floor`."""
        tokens = tokenize(candidate, self._convention)
        encoded = "".join([self._code_points.get(token, _UNKNOWN) for token in tokens])
        return _max_f_measure(encoded, self._encoded, self._lengths[: len(self)], floor)


def rouge_l(first: str, second: str, convention: Convention = "default") -> float:
    """The ROUGE-L F-measure of two texts, in [0, 1]."""
    return max_rouge_l(first, [second], convention)


def max_rouge_l(candidate: str, texts: Iterable[str], convention: Convention = "default") -> float:
    """The largest ROUGE-L F-measure of a candidate against some texts, in [0, 1]; 0.0 against none."""
    return RougeIndex(texts, convention).max_rouge_l(candidate)


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
