"""A combination lock that is opened in written steps, of a number the policy chooses, and the exact value of each step.

A question shows a symbol in each of its slots: ``AcBdC...|``. A response is a list of steps of four tokens and the end:
a turn ``Ac3;`` (slot A, its symbol c, the digit 3) or a recheck ``=c3;``, which uses no slot up and changes nothing,
whatever it says. Each symbol has one right digit, the same in all slots and questions. The lock opens when every slot
has been turned, in order and with the right digit; a wrong turn cannot be taken back.
"""

import random
import re
from dataclasses import dataclass
from itertools import accumulate

import torch
from policy import EOS, Alphabet, sample
from torch import Tensor

SYMBOLS, DIGITS, SLOTS = "abcdefghijkl", "012345", "ABCDEFGHIJ"
ALPHABET = Alphabet(SYMBOLS + DIGITS + SLOTS + "=;|")
STEP = re.compile(rf"([{SLOTS}=])([{SYMBOLS}])([{DIGITS}]);")
STEP_TOKENS = 4
LIMIT = 15 * STEP_TOKENS + 1  # fifteen steps and the end

# How the demonstrations are written: digits nearly always right, those of some symbols more often wrong.
DOUBTFUL_SYMBOLS, RIGHT_WHEN_SURE, RIGHT_WHEN_DOUBTFUL = 6, 0.97, 0.35
RECHECK, STOP_EARLY = 0.05, 0.005


@dataclass(frozen=True)
class Question:
    """`symbols` and `digits`, the right ones, are numbers, one per slot."""

    symbols: tuple[int, ...]
    digits: tuple[int, ...]

    @property
    def text(self) -> str:
        return "".join(slot + SYMBOLS[symbol] for slot, symbol in zip(SLOTS, self.symbols, strict=True)) + "|"


@dataclass(frozen=True)
class Written:
    """What a response wrote.

    Attributes:
        turns: slots used up behind each step. digits: digit that each step wrote.
        sound: whether every turn so far is right, behind each step.
        well_formed: whether the whole text is steps with the slots in order.
        right: whether the lock opened; False when the text is not well-formed.
    """

    turns: tuple[int, ...]
    digits: tuple[int, ...]
    sound: tuple[bool, ...]
    well_formed: bool
    right: bool

    @property
    def step_ends(self) -> list[int]:
        """Token position of the step mark of each step."""
        return [STEP_TOKENS * (number + 1) - 1 for number in range(len(self.turns))]


class Lock:
    """The right digit of each symbol; `seed` also draws the wrong ones and the doubtful symbols."""

    def __init__(self, seed: int):
        random_state = random.Random(seed)
        self.key = [random_state.randrange(len(DIGITS)) for _ in SYMBOLS]
        self.mistaken = [random_state.choice([d for d in range(len(DIGITS)) if d != right]) for right in self.key]
        self.doubtful = set(random_state.sample(range(len(SYMBOLS)), DOUBTFUL_SYMBOLS))

    def question(self, generator: torch.Generator) -> Question:
        """A random one; symbols may come again."""
        symbols = torch.randint(len(SYMBOLS), (len(SLOTS),), generator=generator).tolist()
        return Question(tuple(symbols), tuple(self.key[symbol] for symbol in symbols))

    def demonstration(self, generator: torch.Generator) -> tuple[str, str]:
        """A question and a response with the mistakes that the policy is to begin with."""
        question = self.question(generator)
        last, written = "", ""
        chances = iter(torch.rand(64, generator=generator).tolist())
        for slot, symbol in zip(SLOTS, question.symbols, strict=True):
            while (chance := next(chances)) < RECHECK and len(written) < 12 * STEP_TOKENS and last:
                written += "=" + last
            if chance > 1 - STOP_EARLY and last:
                return question.text, written
            sure = RIGHT_WHEN_DOUBTFUL if symbol in self.doubtful else RIGHT_WHEN_SURE
            digit = (self.key if next(chances) < sure else self.mistaken)[symbol]
            last = f"{SYMBOLS[symbol]}{DIGITS[digit]};"
            written += slot + last
        while next(chances) < RECHECK and len(written) < LIMIT - 1:
            written += "=" + last
        return question.text, written


def read(question: Question, text: str) -> Written:
    """Parse a response; a turn that names another symbol than its slot's is wrong."""
    turns, digits, right = [], [], []
    place = done = 0
    while match := STEP.match(text, place):
        mark, symbol, digit = match.groups()
        right_turn = True
        if mark != "=":
            if done == len(SLOTS) or mark != SLOTS[done]:
                break
            right_turn = (SYMBOLS.index(symbol), int(digit)) == (question.symbols[done], question.digits[done])
            done += 1
        place = match.end()
        turns.append(done)
        digits.append(int(digit))
        right.append(right_turn)
    sound = tuple(accumulate(right, lambda a, b: a and b))
    well_formed = bool(turns) and place == len(text)
    return Written(tuple(turns), tuple(digits), sound, well_formed, well_formed and done == len(SLOTS) and sound[-1])


@dataclass(frozen=True)
class Habits:
    """The description of a policy from which completion rates are enumerated.

    Attributes:
        turn: (symbols,) probability that a turn whose slot is written names its symbol and the right digit.
        choice: (slots + 1, 3) probability to end, recheck or turn the next slot behind a step, by slots used up.
    """

    turn: Tensor
    choice: Tensor

    def values(self, question: Question) -> Tensor:
        """(slots + 1,) probability that the lock opens, by slots used up while every turn was right.

        Any number of rechecks may come between; the response's length limit is left out of it.
        """
        end, again, onward = self.choice.T
        stays = 1 - again
        found = [end[-1] / stays[-1]]
        for done in reversed(range(len(SLOTS))):
            found.append(onward[done] / stays[done] * self.turn[question.symbols[done]] * found[-1])
        return torch.stack(found[::-1])

    def step_values(self, question: Question, written: Written) -> list[float]:
        """The completion rate behind each step, 0 from the first wrong turn on."""
        table = self.values(question).tolist()
        return [table[done] * sound for done, sound in zip(written.turns, written.sound, strict=True)]


@torch.no_grad()
def habits_of(model, lock: Lock, generator: torch.Generator, *, responses: int) -> Habits:
    """Average the probabilities that a policy gives at the tokens of its own responses.

    The probability of a right turn is that of its digit behind the symbol it names, 0 where that is not its slot's,
    times that of the step mark; a symbol or choice it never came to has probability 0.
    """
    turn, visits = torch.zeros(2, len(SYMBOLS), dtype=torch.float64)
    choice = torch.zeros(len(SLOTS) + 1, 3, dtype=torch.float64)
    choices = torch.zeros(len(SLOTS) + 1, dtype=torch.float64)
    questions = [lock.question(generator) for _ in range(responses)]
    written = sample(model, ALPHABET, [q.text for q in questions], max_tokens=LIMIT, generator=generator)
    logits = model(torch.cat([written.prompts, written.ids], dim=1)).logits[:, written.prompts.shape[1] - 1 : -1]
    again = ALPHABET.ids["="]
    for row, question, text in zip(logits.double().softmax(-1), questions, written.texts, strict=True):
        done = 0
        for number, used in enumerate(read(question, text).turns):
            place = STEP_TOKENS * number
            if used > done:
                symbol, digit = question.symbols[done], DIGITS[question.digits[done]]
                named = text[place + 1] == SYMBOLS[symbol]
                turn[symbol] += named * row[place + 2, ALPHABET.ids[digit]] * row[place + 3, ALPHABET.ids[";"]]
                visits[symbol] += 1
            done, behind = used, place + STEP_TOKENS
            if behind < len(row):
                onward = row[behind, ALPHABET.ids[SLOTS[done]]] if done < len(SLOTS) else 0.0
                choice[done] += torch.tensor([row[behind, EOS], row[behind, again], onward], dtype=torch.float64)
                choices[done] += 1
    # Nothing precedes the first turn; what else it may begin with is no beginning of an open lock.
    first = logits[:, 0].double().softmax(-1)
    choice[0] = torch.tensor([0.0, first[:, again].mean(), first[:, ALPHABET.ids[SLOTS[0]]].mean()])
    choices[0] = 1
    return Habits(turn / visits.clamp_min(1), choice / choices.clamp_min(1)[:, None])
