"""What the game adds to a checkpoint: history, question buffer, place in the stream of documents."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.core import state
from recipes.pasodoble.diversity import DiversityHistory
from recipes.pasodoble.settings import RoundSettings


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

    def draw(self, count: int) -> list[BufferedQuestion]:
        """The next ``count`` questions, repeating in a circle if there are fewer; none from an empty buffer."""
        drawn = []
        for _ in range(count if self._questions else 0):
            drawn.append(self._questions[self.cursor])
            # wraps at once, as in the original: a question appended later waits for the next turn
            self.cursor = (self.cursor + 1) % len(self._questions)
        return drawn

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


FILE = "pasodoble.json"


class GameState:
    """Everything that outlives a step, beside the two policies."""

    def __init__(self, settings: RoundSettings, knowledge: str | None):
        """``knowledge``: fingerprint of the knowledge base; a run resumes with the base it was started with."""
        self.history = DiversityHistory(settings.history_size, settings.history_threshold)
        self.buffer = QuestionBuffer()
        self.knowledge = knowledge
        self.documents_drawn = 0
        self.updates = {"proposer": 0, "solver": 0}

    def draw_documents(self, count: int) -> range:
        """Indices of the next ``count`` draws."""
        first, self.documents_drawn = self.documents_drawn, self.documents_drawn + count
        return range(first, first + count)

    def save(self, folder: str | Path) -> None:
        """Write ``pasodoble.json`` in one step."""
        state.save(Path(folder) / FILE, self._state(), identity=self._identity())

    def load(self, folder: str | Path) -> None:
        """Read what ``save`` wrote.

        Raises:
            StateError: the file is missing or damaged, or belongs to another knowledge base or other history rules.
        """
        saved = state.load(Path(folder) / FILE, identity=self._identity())
        self.history.load_state_dict(saved["history"])
        self.buffer.load_state_dict(saved["buffer"])
        self.documents_drawn, self.updates = saved["documents_drawn"], dict(saved["updates"])

    def _identity(self) -> dict[str, Any]:
        rules = {"history_size": self.history.maxlen, "history_threshold": self.history.threshold}
        return {"knowledge": self.knowledge, **rules}

    def _state(self) -> dict[str, Any]:
        return {
            "history": self.history.state_dict(),
            "buffer": self.buffer.state_dict(),
            "documents_drawn": self.documents_drawn,
            "updates": self.updates,
        }
