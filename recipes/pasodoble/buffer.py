"""Questions that the offline Solver trains on, in the order in which they came.

Source: PasoDoble, ``question_buffer.py``. Nothing is evicted; the original's eviction rule is never called.
"""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class BufferedQuestion:
    """A question, the Proposer's answer, the pass rate it was admitted with."""

    question: str
    answer: str
    pass_rate: float


class QuestionBuffer:
    """A list read in a circle. The cursor outlives iterations, so old questions come before new ones."""

    def __init__(self) -> None:
        self._questions: list[BufferedQuestion] = []
        self.cursor = 0

    def __len__(self) -> int:
        return len(self._questions)

    def append(self, question: str, answer: str, pass_rate: float) -> None:
        """Put a question behind all others. Raises ValueError if the question or the answer is empty."""
        if not question or not answer:
            raise ValueError(f"a buffered question needs a text and an answer, got {question!r} and {answer!r}")
        self._questions.append(BufferedQuestion(question, answer, float(pass_rate)))

    def take(self, count: int) -> list[BufferedQuestion]:
        """The next ``count`` questions, repeating in a circle if there are fewer; none from an empty buffer."""
        taken = []
        for _ in range(count if self._questions else 0):
            taken.append(self._questions[self.cursor])
            # wraps at once, as in the original: a question appended later waits for the next turn
            self.cursor = (self.cursor + 1) % len(self._questions)
        return taken

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready state."""
        return {"cursor": self.cursor, "questions": [asdict(question) for question in self._questions]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError if the cursor points outside the buffer."""
        questions = [BufferedQuestion(**question) for question in state["questions"]]
        cursor = state["cursor"]
        if not 0 <= cursor < max(len(questions), 1):
            raise ValueError(f"the saved cursor {cursor} lies outside the saved buffer of {len(questions)} questions")
        self._questions, self.cursor = questions, cursor
