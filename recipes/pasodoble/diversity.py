"""Measure how much a question differs from the recent ones.

Source: PasoDoble, ``jaccorbsimilarity.py``. One history serves the whole job and is part of the checkpoint; the
original keeps it on one rank and loses it when it resumes.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any


def jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    """Divide the size of the intersection by that of the union; 1 for two empty sets."""
    if not a and not b:
        return 1.0
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared)


class DiversityHistory:
    """The last ``maxlen`` questions, each as the set of its token ids.

    ``score`` compares with the committed history only, so questions of one round never count against each other;
    ``commit`` then moves what was scored into the history.
    """

    def __init__(self, maxlen: int = 100, threshold: float = 0.8):
        """``threshold``: two questions are similar if their Jaccard similarity is strictly above it."""
        self.maxlen = maxlen
        self.threshold = threshold
        self._history: deque[frozenset[int]] = deque(maxlen=maxlen)
        self._scored: list[frozenset[int]] = []

    def __len__(self) -> int:
        return len(self._history)

    def score(self, questions_token_ids: Iterable[Iterable[int]]) -> list[float]:
        """Compute the share of the history each question is not similar to, in [0, 1]; 1 while the history is empty."""
        questions = [frozenset(int(token) for token in ids) for ids in questions_token_ids]
        self._scored += questions
        size = len(self._history)
        if size == 0:
            return [1.0] * len(questions)
        return [
            (size - sum(jaccard(question, past) > self.threshold for past in self._history)) / size
            for question in questions
        ]

    def commit(self, admit: Sequence[bool] | None = None) -> int:
        """Append the questions scored since the last commit, oldest first; return how many entered.

        ``admit`` says for each of them whether it enters; without it all do.
        """
        if admit is None:
            admit = [True] * len(self._scored)
        if len(admit) != len(self._scored):
            raise ValueError(f"{len(self._scored)} questions were scored, but admit has {len(admit)} entries")
        entering = [question for question, ok in zip(self._scored, admit, strict=True) if ok]
        self._history.extend(entering)
        self._scored = []
        return len(entering)

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready state. Raises RuntimeError between ``score`` and ``commit``."""
        if self._scored:
            raise RuntimeError("the history has scored questions that are not committed yet: save between rounds")
        return {"questions": [sorted(question) for question in self._history]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken."""
        self._history = deque((frozenset(ids) for ids in state["questions"]), maxlen=self.maxlen)
        self._scored = []
