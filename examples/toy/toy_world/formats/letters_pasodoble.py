"""The letters world for PasoDoble: notes are words with a count, the Proposer asks about one, the Solver counts.

The length of the word is the Proposer's honest knob: a longer one is harder to count, and as easy to ask about. Half of
the Solver's demonstrations count, so that more of the problems have a pass rate from which it learns.
"""

import json
import random
import re
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from toy_world.formats import Example, Split, arithmetic, letters
from toy_world.warm_up import Schedule

DATA_SOURCE = letters.DATA_SOURCE
ABILITY = letters.ABILITY
BAND = (0.10, 0.65)
MAX_RESPONSE_TOKENS = 112
SCHEDULE = Schedule(batch=16, learning_rate=5e-5, ramp=10, updates=80)
base_model = letters.base_model
grade = arithmetic.grade

TEST, LESSONS, DOCUMENTS = 500, 2500, 600
NOTE_LENGTHS = (4, 12)
WORKED_SHARE = 0.5
PROPOSER_UPDATES = 40
# As recipes/pasodoble/config/scale/smollm2_135m.yaml has them.
PROPOSER_SYSTEM = "Write a question about letters, then its answer in a box."
PROPOSER_USER = "External knowledge: {knowledge}"
SOLVER_SYSTEM = "You count letters. Answer in a box."

_PROPOSAL = re.compile(r"<problem>How many ([a-z]) are there in word ([a-z-]+)\?</problem>\n<answer>\\boxed\{(\d+)\}<")


def split(seed: int) -> Split:
    """The Solver's questions: held-out ones, and demonstrations of both habits behind the end of its thoughts."""
    rng = random.Random(f"letters pasodoble {seed}")
    found: dict[str, Example] = {}
    while len(found) < TEST + LESSONS:
        letter, word = letters.draw_word(rng)
        worked = rng.random() < WORKED_SHARE
        one = letters.example(letter, word, worked, SOLVER_SYSTEM)
        response = "<think>\n</think>\n" + one.response.partition("} ")[0] + "}"
        found.setdefault(one.extra_info["question"], Example(one.prompt, response, one.ground_truth, one.extra_info))
    examples = list(found.values())
    test = [Example(one.prompt, "", one.ground_truth, one.extra_info) for one in examples[:TEST]]
    return Split(train=[], test=test, lessons=examples[TEST:])


def write_more(folder: Path, split: Split, tokenizer: PreTrainedTokenizerBase, seed: int) -> dict:
    """Write ``knowledge.jsonl`` and the model ``proposer/``."""
    from toy_world import build

    rng = random.Random(f"letters proposer {seed}")
    lessons = [_proposal(rng) for _ in range(LESSONS)]
    unseen = [_proposal(rng) for _ in range(DOCUMENTS)]
    lines = (json.dumps({"text": one.ground_truth}) for one in unseen)
    (folder / "knowledge.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _, model = build.pretrained(base_model())
    report = build.train_and_save(
        folder / "proposer", _Proposer, Split([], unseen[:100], lessons), tokenizer, model, seed, "proposer"
    )
    return {"documents": DOCUMENTS, "proposer": report}


def grade_proposal(response: str, note: str) -> bool:
    """Whether the response asks for the letter of the note's word, with the right answer."""
    match = _PROPOSAL.search(response)
    return match is not None and note == f"{match[2]}: {match[1]} x {match[3]}."


class _Proposer:
    """What `train_and_save` asks of a format."""

    BAND = (0.6, 1.0)
    MAX_RESPONSE_TOKENS = 96
    SCHEDULE = Schedule(batch=16, learning_rate=5e-5, ramp=10, updates=PROPOSER_UPDATES)
    grade = staticmethod(grade_proposal)


def _proposal(rng: random.Random) -> Example:
    letter, word = letters.draw_word(rng, NOTE_LENGTHS)
    count = word.split("-").count(letter)
    note, question = f"{word}: {letter} x {count}.", letters.ask(letter, word)
    return Example(
        prompt=[
            {"role": "system", "content": PROPOSER_SYSTEM},
            {"role": "user", "content": PROPOSER_USER.replace("{knowledge}", note)},
        ],
        response=f"<think>\n</think>\n<problem>{question}</problem>\n<answer>\\boxed{{{count}}}</answer>",
        ground_truth=note,
    )
