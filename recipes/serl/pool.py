"""The instruction pools of a run: seeds, generated few-shot examples, and candidates waiting to be answered."""

import random
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from typing import Literal

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import LCSseq

from recipes.serl.instructions import draw_examples

# The rouge-score package, which the original uses, sees a-z and 0-9 alone: two Russian questions with the same digits
# are equal to it, and so are `x^2+3x-4` and `x^2-3x+4`. By default words of all scripts and the signs of formulas are
# tokens.
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
    """A growing set of texts to compare candidates with by their exact ROUGE-L.

    Texts become strings with one code point per token, so that rapidfuzz's bit-parallel LCS compares tokens at C speed.
    """

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
        codes = self._code_points
        encoded = "".join([codes.setdefault(token, chr(len(codes) + 1)) for token in tokenize(text, self._convention)])
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
    """In the operations of rouge-score, since a threshold sees the last bit: 7 of 8 and 12 is 0.7000000000000001."""
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


@dataclass(frozen=True)
class Instruction:
    """One prompt to answer: running index, text, `origin` (`generated`, `seed` or `dataset`), and the messages of a
    dataset's row that stand before the text."""

    idx: int
    text: str
    origin: str = "generated"
    before: tuple[dict[str, str], ...] = ()


class InstructionPool:
    """Few-shot pool and pending pool of one run (SeRL code, `ppo_trainer.fit`).

    A candidate enters the pending pool when its ROUGE-L against every seed and every instruction in `scope` is at most
    `threshold`: `pool` compares with what is pending (the original), `step` with all accepted in the step, `history`
    with all accepted in the run. Instructions that passed the difficulty filter become few-shot examples for good.

    Few-shot draws depend only on (`rng_seed`, step, call, prompt): a resumed run draws what an uninterrupted one does.
    """

    def __init__(
        self,
        seeds: Sequence[str],
        *,
        threshold: float = 0.7,
        scope: str = "step",
        rng_seed: int = 42,
        similarity: Convention = "default",
    ) -> None:
        self.seeds = tuple(seeds)
        self.threshold = threshold
        self.scope = scope
        self.rng_seed = rng_seed
        self.few_shot: list[str] = []
        self.next_idx = 0
        self._pending: deque[Instruction] = deque()
        self._accepted: list[str] = []
        self._similarity: Convention = similarity
        self._seed_index = RougeIndex(self.seeds, similarity)
        self._accepted_index = RougeIndex((), similarity)

    def __len__(self) -> int:
        """Instructions waiting to be answered."""
        return len(self._pending)

    def draw_examples(self, *, step: int, call: int, prompt: int, k: int = 8, max_generated: int = 2) -> list[str]:
        """The examples of few-shot prompt number `prompt` in generation call number `call` of `step`."""
        rng = random.Random(f"{self.rng_seed}/few-shot/{step}/{call}/{prompt}")
        return draw_examples(rng, self.few_shot, self.seeds, k=k, max_generated=max_generated)

    def offer(self, text: str) -> tuple[Instruction | None, float]:
        """Add a filtered instruction to the pending pool unless it is too similar.

        Returns the instruction, or `None` when it is dropped, and the largest ROUGE-L found when it exceeds `threshold`
        (0.0 otherwise).
        """
        similarity = self._seed_index.max_rouge_l(text, floor=self.threshold)
        if similarity == 0.0:
            similarity = self._accepted_index.max_rouge_l(text, floor=self.threshold)
        if similarity > self.threshold:
            return None, similarity
        instruction = Instruction(idx=self._new_idx(), text=text)
        self._pending.append(instruction)
        self._accepted.append(text)
        self._accepted_index.add(text)
        return instruction, 0.0

    def pop(self, n: int) -> list[Instruction]:
        """Remove and return up to `n` pending instructions, oldest first."""
        popped = [self._pending.popleft() for _ in range(min(n, len(self._pending)))]
        if popped and self.scope == "pool":
            self._compare_with(instruction.text for instruction in self._pending)
        return popped

    def draw_seeds(self, n: int, *, step: int, taken: Iterable[str] = ()) -> list[Instruction]:
        """Up to `n` seeds in an order that depends on the step, without those in `taken`, to answer as they are."""
        exclude = set(taken)
        order = [text for text in dict.fromkeys(self.seeds) if text not in exclude]
        random.Random(f"{self.rng_seed}/seed-prompts/{step}").shuffle(order)
        return [Instruction(idx=self._new_idx(), text=text, origin="seed") for text in order[:n]]

    def add_few_shot(self, texts: Iterable[str]) -> None:
        """Add instructions that passed the difficulty filter to the few-shot pool."""
        self.few_shot.extend(texts)

    def end_step(self, *, carry_pending: bool = False) -> list[Instruction]:
        """Close the step: return the pending instructions that expire, all of them unless `carry_pending`."""
        expired = [] if carry_pending else list(self._pending)
        if not carry_pending:
            self._pending.clear()
        if self.scope != "history":
            self._compare_with(instruction.text for instruction in self._pending)
        return expired

    def state_dict(self) -> dict:
        """All that a resumed run needs, in JSON types."""
        return {
            "scope": self.scope,
            "rng_seed": self.rng_seed,
            "next_idx": self.next_idx,
            "few_shot": list(self.few_shot),
            "pending": [asdict(instruction) for instruction in self._pending],
            "accepted": list(self._accepted),
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore what `state_dict` returned; raises `ValueError` when the state belongs to other settings."""
        expected = {"scope": self.scope, "rng_seed": self.rng_seed}
        saved = {key: state.get(key) for key in expected}
        if saved != expected:
            raise ValueError(
                f"the checkpoint's instruction pool was made with {saved}, this run is configured with {expected}; "
                "resume with the same settings or start a new run"
            )
        missing = sorted(self.state_dict().keys() - state.keys())
        if missing:
            raise ValueError(f"the checkpoint's instruction pool lacks {', '.join(missing)}; it is damaged or too old")
        self.next_idx = state["next_idx"]
        self.few_shot = list(state["few_shot"])
        self._pending = deque(Instruction(**fields) for fields in state["pending"])
        self._compare_with(state["accepted"])

    def _new_idx(self) -> int:
        self.next_idx += 1
        return self.next_idx - 1

    def _compare_with(self, texts: Iterable[str]) -> None:
        self._accepted = list(texts)
        self._accepted_index = RougeIndex(self._accepted, self._similarity)
