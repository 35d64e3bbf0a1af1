"""Where the prompts of a step come from: the model's own instructions, or the rows of a dataset."""

import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recipes.errors import JournalError
from recipes.serl.instructions import PromptTemplate, filter_instruction, fit_prompt, parse_instructions
from recipes.serl.pool import Instruction, InstructionPool
from recipes.serl.settings import InstructionSettings

KINDS = ("filtered_data", "expired_data", "keep_train_data")
_NAME = re.compile(rf"(?:{'|'.join(KINDS)})_(\d+)\.jsonl")


class Journal:
    """What became of every instruction: the files `{kind}_{step}.jsonl` of one folder, named as in the original code.

    A checkpoint keeps their lengths in bytes, to which a run that resumes sets them back, however much of the last line
    reached the disk.

    `filtered_data` holds every instruction dropped by a filter, `expired_data` those that passed and were left over,
    `keep_train_data` those trained on. A line holds `idx`, `prompt`, `step`, and whatever else the writer knows.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, kind: str, step: int, *, idx: int | None, prompt: str, **fields: Any) -> None:
        """Append one line; it reaches the file whole or, when the process dies in between, is cut off on resume."""
        if kind not in KINDS:
            raise ValueError(f"journal kind must be one of {', '.join(KINDS)}, got {kind!r}")
        record = {"idx": idx, "prompt": prompt, "step": step, **fields}
        # A lone surrogate in generated text must not end the run, so non-ASCII is escaped.
        line = json.dumps(record, ensure_ascii=True, allow_nan=False) + "\n"
        with open(self.folder / f"{kind}_{step}.jsonl", "ab", buffering=0) as file:
            file.write(line.encode("ascii"))

    def sync(self) -> dict[str, int]:
        """Force the files to disk and return the length of each in bytes, for the checkpoint."""
        offsets = {}
        for path in self._files():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                offsets[path.name] = os.fstat(file.fileno()).st_size
        return offsets

    def set_back(self, offsets: dict[str, int]) -> Path | None:
        """Set the files back to `offsets`; what is beyond them is moved into a subfolder, which is returned.

        Nothing is deleted: it may be the record of another run, or of steps that a killed run made after its last
        checkpoint. Raises `JournalError` when a file is missing or shorter than its offset.
        """
        for name, offset in offsets.items():
            path = self.folder / name
            size = path.stat().st_size if path.is_file() else None
            if size is None or size < offset:
                state = "is missing" if size is None else f"has {size} bytes"
                raise JournalError(
                    f"journal {path} {state}, the checkpoint was written when it had {offset}; "
                    "restore the file or start a new run with another journal folder"
                )
        beyond = [path for path in self._files() if path.stat().st_size > offsets.get(path.name, -1)]
        if not beyond:
            return None
        aside = self._new_folder()
        for path in beyond:
            if path.name in offsets:
                # The copy is whole before the original is cut.
                shutil.copy2(path, aside / path.name)
                os.truncate(path, offsets[path.name])
            else:
                path.rename(aside / path.name)
        return aside

    def read(self, kind: str, step: int) -> list[dict]:
        """The records of one file, empty when it does not exist."""
        path = self.folder / f"{kind}_{step}.jsonl"
        if not path.is_file():
            return []
        return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def _new_folder(self) -> Path:
        number = 1
        while True:
            folder = self.folder / f"set_aside_{number}"
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                return folder


# Spelt in a prompt, such a text becomes the token itself, and may end the question and open another turn.
_CONTROL = re.compile(r"<\|[^<>|]{1,40}\|>|<｜[^<>]{1,40}｜>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")

Generate = Callable[[list[list[int]], int, int], Sequence[str | None]]
"""Answers few-shot prompts (token ids) of a step and call; `None` stands for a request that failed."""


class SelfInstructSource:
    """Few-shot prompts, the current policy, parser, text filters and similarity filter (SeRL code, `ppo_trainer.fit`).

    The calls that fill a round are bounded; after them the round is filled up with seed questions, if the settings say
    so. Every instruction dropped on the way goes to the journal with its reason.
    """

    def __init__(
        self,
        pool: InstructionPool,
        template: PromptTemplate,
        settings: InstructionSettings,
        journal: Journal,
        *,
        tokenize: Callable[[list[dict[str, str]]], list[int]],
        generate: Generate,
    ) -> None:
        self.pool = pool
        self.template = template
        self.settings = settings
        self.journal = journal
        self.tokenize = tokenize
        self.generate = generate
        self.shortfall: str | None = None
        self._step: int | None = None
        self._calls = 0
        self._seeds_taken: list[str] = []
        self._counts: Counter[str] = Counter()

    @property
    def exhausted(self) -> bool:
        """Always False: a model can write more."""
        return False

    def next_round(self, n: int, *, step: int) -> list[Instruction]:
        """Up to `n` instructions to answer, generated while the pending pool is short of `n`."""
        if step != self._step:
            self._step, self._calls, self._seeds_taken = step, 0, []
        self.shortfall = None
        for _ in range(self.settings.max_generation_calls):
            if len(self.pool) >= n:
                break
            self._call(step)
        taken = self.pool.pop(n)
        if len(taken) < n:
            self.shortfall = (
                f"{self.settings.max_generation_calls} generation calls gave {len(taken)} of {n} instructions"
            )
            if self.settings.fall_back_to_seeds:
                seeds = self.pool.draw_seeds(n - len(taken), step=step, taken=self._seeds_taken)
                self._seeds_taken += [seed.text for seed in seeds]
                self._counts["seeds_answered"] += len(seeds)
                taken += seeds
        return taken

    def add_few_shot(self, instructions: Sequence[Instruction]) -> None:
        """Make instructions that passed the difficulty filter few-shot examples; seeds already are."""
        self.pool.add_few_shot(instruction.text for instruction in instructions if instruction.origin == "generated")

    def end_step(self) -> list[Instruction]:
        """Close the step and return the instructions that expire unanswered."""
        return self.pool.end_step(carry_pending=self.settings.carry_pending)

    def pop_counts(self) -> dict[str, float]:
        """Counters since the last call of this method."""
        counts, self._counts = self._counts, Counter()
        return {name: n for name, n in counts.items() if n}

    def state_dict(self) -> dict:
        """The pool's state; nothing else outlives a step."""
        return self.pool.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict`."""
        self.pool.load_state_dict(state)

    def _call(self, step: int) -> None:
        settings, call = self.settings, self._calls
        self._calls += 1
        prompts = []
        for number in range(settings.few_shot_generation_batch_size or 4):
            examples = self.pool.draw_examples(
                step=step,
                call=call,
                prompt=number,
                k=settings.few_shot_generation,
                max_generated=settings.few_shot_generated,
            )
            ids, shown = fit_prompt(
                examples,
                self.template,
                self.tokenize,
                max_tokens=settings.max_prompt_tokens,
                overlong=settings.overlong_prompt,
            )
            self._counts["examples_dropped"] += len(examples) - shown
            prompts.append(ids)
        texts = self.generate(prompts, step, call)
        self._counts["generation_calls"] += 1
        self._counts["generation_failed"] += sum(text is None for text in texts)
        for text in texts:
            items = parse_instructions(text, settings.parser) if text else []
            self._counts["texts_unparsable"] += int(text is not None and not items)
            for item in items:
                self._offer(item, step)

    def _offer(self, item: str, step: int) -> None:
        self._counts["parsed"] += 1
        kept, reason = filter_instruction(item, lowercase_like_reference=self.settings.lowercase_like_reference)
        if kept is not None and _CONTROL.search(kept):
            kept, reason = None, "control_token"
        fields = {}
        if kept is not None:
            instruction, similarity = self.pool.offer(kept)
            if instruction is not None:
                self._counts["accepted"] += 1
                return
            reason, fields = "too_similar", {"similarity": similarity}
        self._counts[f"dropped/{reason}"] += 1
        self.journal.write("filtered_data", step, idx=None, prompt=item, reason=reason, **fields)


class DatasetSource:
    """The rows of a dataset in an order shuffled per epoch; ends after `epochs` of them (SeRL code, `num_episodes`).

    Args:
        questions: the last message of each row.
        before: the messages that stand before it; nothing where it is left out.
    """

    def __init__(
        self,
        questions: Sequence[str],
        before: Sequence[tuple[dict[str, str], ...]] = (),
        *,
        rng_seed: int = 42,
        epochs: int = 1,
    ) -> None:
        if not questions:
            raise ValueError("the training data has no questions")
        self.questions = questions
        self.before = before or [()] * len(questions)
        self.rng_seed = rng_seed
        self.epochs = epochs
        self.shortfall: str | None = None
        self._position = 0

    @property
    def exhausted(self) -> bool:
        """Whether all epochs were given out."""
        return self._position >= len(self.questions) * self.epochs

    def next_round(self, n: int, *, step: int) -> list[Instruction]:
        """The next `n` rows; their `idx` is the row number."""
        size = len(self.questions)
        end = min(self._position + n, size * self.epochs)
        rows = [self._order(place // size)[place % size] for place in range(self._position, end)]
        self.shortfall = None if len(rows) == n else f"the training data ended after {self.epochs} epochs"
        self._position = end
        return [Instruction(row, self.questions[row], "dataset", self.before[row]) for row in rows]

    def add_few_shot(self, instructions: Sequence[Instruction]) -> None:
        """Do nothing: rows of a dataset are no few-shot examples."""

    def end_step(self) -> list[Instruction]:
        """Return nothing: no row waits between steps."""
        return []

    def pop_counts(self) -> dict[str, float]:
        """Epochs begun."""
        return {"epoch": self._position / len(self.questions)}

    def state_dict(self) -> dict:
        """The place in the stream of rows."""
        return {"position": self._position, "size": len(self.questions), "rng_seed": self.rng_seed}

    def load_state_dict(self, state: dict) -> None:
        """Restore `state_dict`; raises `ValueError` when the data or the seed changed."""
        expected = {"size": len(self.questions), "rng_seed": self.rng_seed}
        saved = {key: state.get(key) for key in expected}
        if saved != expected:
            raise ValueError(f"the checkpoint belongs to data with {saved}, this run has {expected}; use the same data")
        self._position = state["position"]

    def _order(self, epoch: int) -> list[int]:
        if getattr(self, "_shuffled_epoch", None) != epoch:
            self._shuffled = list(range(len(self.questions)))
            random.Random(f"{self.rng_seed}/epoch/{epoch}").shuffle(self._shuffled)
            self._shuffled_epoch = epoch
        return self._shuffled


Source = SelfInstructSource | DatasetSource
"""Where the instructions of a round come from; `shortfall` says why there are fewer than were asked for."""
