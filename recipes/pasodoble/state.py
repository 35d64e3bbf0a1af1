"""What the game adds to a checkpoint: history, question buffer, place in the stream of documents."""

from pathlib import Path
from typing import Any

from recipes.core import state
from recipes.pasodoble.buffer import QuestionBuffer
from recipes.pasodoble.diversity import DiversityHistory
from recipes.pasodoble.settings import RoundSettings

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

    def take_documents(self, count: int) -> range:
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
