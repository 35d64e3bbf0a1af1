"""What the game adds to a checkpoint: history, question buffer, place in the stream of documents."""

import json
from pathlib import Path
from typing import Any

from recipes.common.files import write
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
        Path(folder).mkdir(parents=True, exist_ok=True)
        write(Path(folder) / FILE, json.dumps(self._state(), ensure_ascii=True))

    def load(self, folder: str | Path) -> None:
        """Read what ``save`` wrote.

        Raises:
            ValueError: if the file is missing or damaged, or belongs to another knowledge base or other history rules.
        """
        path = Path(folder) / FILE
        try:
            state = json.loads(path.read_text())
            history, buffer = state["history"], state["buffer"]
            documents, updates, knowledge = state["documents_drawn"], state["updates"], state["knowledge"]
        except FileNotFoundError as error:
            raise ValueError(
                f"the checkpoint {folder} has no {FILE}: it is not complete, resume from another one"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error!r}): resume from another checkpoint") from error
        if knowledge != self.knowledge:
            raise ValueError(
                f"{path} was written with another knowledge base or seed: resume with the one it had, or start anew"
            )
        self.history.load_state_dict(history)
        self.buffer.load_state_dict(buffer)
        self.documents_drawn, self.updates = documents, dict(updates)

    def _state(self) -> dict[str, Any]:
        return {
            "history": self.history.state_dict(),
            "buffer": self.buffer.state_dict(),
            "knowledge": self.knowledge,
            "documents_drawn": self.documents_drawn,
            "updates": self.updates,
        }
