"""The letters world for PasoDoble: a note says what follows two numbers, and how often three words have a letter.

What the Proposer asks about is its honest knob. Before it is trained it mostly asks which number follows; the Solver
knows, and learns nothing from it. The letters of a word have to be counted. Both are as easy to ask about.
"""

import json
import random
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from toy_world.formats import Example, Split, arithmetic, letters
from toy_world.warm_up import Schedule

DATA_SOURCE = letters.DATA_SOURCE
ABILITY = letters.ABILITY
BAND = (0.10, 0.75)
MAX_RESPONSE_TOKENS = 112
SCHEDULE = Schedule(batch=16, learning_rate=5e-5, ramp=10, updates=130)
base_model = letters.base_model
grade = arithmetic.grade

TEST, LESSONS, DOCUMENTS = 500, 2500, 600
LENGTHS, NOTE_LENGTHS = (3, 6), (2, 4)
WORKED_SHARE, NUMBERS_SHARE, WORDS_SHARE = 0.5, 0.2, 0.15
PROPOSER_UPDATES = 60
# As recipes/pasodoble/config/scale/smollm2_135m.yaml has them.
PROPOSER_SYSTEM = "Write a question about letters, then its answer in a box."
PROPOSER_USER = "External knowledge: {knowledge}"
SOLVER_SYSTEM = "You count letters. Answer in a box."


def split(seed: int) -> Split:
    """The Solver's questions: held-out words; demonstrations of both habits, and some of what follows a number."""
    rng = random.Random(f"letters pasodoble {seed}")
    found: dict[str, Example] = {}
    while len(found) < TEST + LESSONS:
        if len(found) >= TEST and rng.random() < NUMBERS_SHARE:
            question, answer = _asked(_number(rng))
            prompt = [{"role": "system", "content": SOLVER_SYSTEM}, {"role": "user", "content": question}]
            one = Example(prompt, f"\\boxed{{{answer}}} ", answer, {"question": question})
        else:
            one = letters.example(*letters.draw_word(rng, LENGTHS), rng.random() < WORKED_SHARE, SOLVER_SYSTEM)
        response = "<think>\n</think>\n" + one.response.partition("} ")[0] + "}"
        found.setdefault(one.extra_info["question"], Example(one.prompt, response, one.ground_truth, one.extra_info))
    examples = list(found.values())
    test = [Example(one.prompt, "", one.ground_truth, one.extra_info) for one in examples[:TEST]]
    return Split(train=[], test=test, lessons=examples[TEST:])


def write_more(folder: Path, split: Split, tokenizer: PreTrainedTokenizerBase, seed: int) -> dict:
    """Write ``knowledge.jsonl``, ``words.jsonl`` (the same notes without their numbers) and the model ``proposer/``."""
    from toy_world import build

    rng = random.Random(f"letters proposer {seed}")
    lessons = [_proposal(rng, LENGTHS) for _ in range(LESSONS)]
    unseen = [_proposal(rng) for _ in range(DOCUMENTS)]
    notes = [one.ground_truth for one in unseen]
    words = ["\n".join(line for line in note.split("\n") if " x " in line) for note in notes]
    for name, texts in (("knowledge", notes), ("words", words)):
        lines = (json.dumps({"text": text}) for text in texts)
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _, model = build.pretrained(base_model())
    report = build.train_and_save(
        folder / "proposer", _Proposer, Split([], unseen[:100], lessons), tokenizer, model, seed, "proposer"
    )
    return {"documents": DOCUMENTS, "proposer": report}


def grade_proposal(response: str, note: str) -> bool:
    """Whether the response asks about a line of the note, with the right answer."""
    return any(_proposed(line) in response for line in note.split("\n"))


class _Proposer:
    """What `train_and_save` asks of a format."""

    BAND = (0.6, 1.0)
    MAX_RESPONSE_TOKENS = 96
    SCHEDULE = Schedule(batch=16, learning_rate=5e-5, ramp=10, updates=PROPOSER_UPDATES)
    grade = staticmethod(grade_proposal)


def _word(rng: random.Random, lengths: tuple[int, int]) -> str:
    letter, word = letters.draw_word(rng, lengths)
    return f"{word}: {letter} x {word.split('-').count(letter)}."


def _number(rng: random.Random) -> str:
    before = rng.randint(100, 998)
    return f"{before}: {before + 1}."


def _asked(line: str) -> tuple[str, str]:
    """The question about a line of a note, and its answer."""
    subject, fact = line.rstrip(".").split(": ")
    letter, _, count = fact.partition(" x ")
    return (letters.ask(letter, subject), count) if count else (f"Which number follows {subject}?", fact)


def _proposed(line: str) -> str:
    question, answer = _asked(line)
    return f"<think>\n</think>\n<problem>{question}</problem>\n<answer>\\boxed{{{answer}}}</answer>"


def _proposal(rng: random.Random, lengths: tuple[int, int] = NOTE_LENGTHS) -> Example:
    words, numbers = [_word(rng, lengths) for _ in range(3)], [_number(rng) for _ in range(2)]
    response = _proposed(rng.choice(words if rng.random() < WORDS_SHARE else numbers))
    note = "\n".join(rng.sample(words + numbers, 5))
    return Example(
        prompt=[
            {"role": "system", "content": PROPOSER_SYSTEM},
            {"role": "user", "content": PROPOSER_USER.replace("{knowledge}", note)},
        ],
        response=response,
        ground_truth=note,
    )
