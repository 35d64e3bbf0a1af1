"""The instruction pools of a run: seeds, generated few-shot examples, and candidates waiting to be answered."""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from recipes.serl.instructions import draw_examples
from recipes.serl.similarity import Convention, RougeIndex


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
        instruction = Instruction(idx=self._take_idx(), text=text)
        self._pending.append(instruction)
        self._accepted.append(text)
        self._accepted_index.add(text)
        return instruction, 0.0

    def take(self, n: int) -> list[Instruction]:
        """Remove and return up to `n` pending instructions, oldest first."""
        taken = [self._pending.popleft() for _ in range(min(n, len(self._pending)))]
        if taken and self.scope == "pool":
            self._compare_with(instruction.text for instruction in self._pending)
        return taken

    def take_seeds(self, n: int, *, step: int, taken: Iterable[str] = ()) -> list[Instruction]:
        """Up to `n` seeds in an order that depends on the step, without those in `taken`, to answer as they are."""
        exclude = set(taken)
        order = [text for text in dict.fromkeys(self.seeds) if text not in exclude]
        random.Random(f"{self.rng_seed}/seed-prompts/{step}").shuffle(order)
        return [Instruction(idx=self._take_idx(), text=text, origin="seed") for text in order[:n]]

    def keep(self, texts: Iterable[str]) -> None:
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
        found = {key: state.get(key) for key in expected}
        if found != expected:
            raise ValueError(
                f"the checkpoint's instruction pool was made with {found}, this run is configured with {expected}; "
                "resume with the same settings or start a new run"
            )
        missing = sorted(self.state_dict().keys() - state.keys())
        if missing:
            raise ValueError(f"the checkpoint's instruction pool lacks {', '.join(missing)}; it is damaged or too old")
        self.next_idx = state["next_idx"]
        self.few_shot = list(state["few_shot"])
        self._pending = deque(Instruction(**fields) for fields in state["pending"])
        self._compare_with(state["accepted"])

    def _take_idx(self) -> int:
        self.next_idx += 1
        return self.next_idx - 1

    def _compare_with(self, texts: Iterable[str]) -> None:
        self._accepted = list(texts)
        self._accepted_index = RougeIndex(self._accepted, self._similarity)
