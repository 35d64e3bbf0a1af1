"""Rounds of a Proposer and a Solver on notes: PasoDoble's online loop with the recipe's rewards and filters.

A Proposer that is trained, one that is frozen, and an oracle that chooses the frozen one's best questions.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from notes import (
    ALPHABET,
    ANSWERABLE,
    QUESTION,
    RESPONSE,
    answer_of,
    draw_note,
    first_proposer,
    first_solver,
    gold_of,
    parsed,
)
from policy import Responses, copy_of, sample
from torch import Tensor
from updates import clipped_surrogate, update

from recipes.pasodoble.diversity import DiversityHistory
from recipes.pasodoble.round_metrics import pass_rate_band
from recipes.pasodoble.rounds import Proposal, ScoredRound, score_rounds
from recipes.pasodoble.settings import RoundSettings
from recipes.serl.estimators import grpo_advantage

# the Proposer's reward, or how a Proposer that is not trained chooses
TRAINED = ("pasodoble", "learnability")
ARMS = (*TRAINED, "frozen", "oracle")
# the kind of question that cannot be answered
WORLDS = {"ten answers": "u", "two answers": "v"}
SOLVER_WARM_UP, PROPOSER_WARM_UP = 425, 200
# a step of the Solver trains on the first questions to pass the filter, asked for at most so many times
QUESTIONS, MOST_BATCHES = 16, 6
NOTES, PROPOSALS, ANSWERS, PARTS = 4, 6, 6, 2
# the oracle chooses among so many questions for each that is asked, by as many answers that train nothing
CANDIDATES, TRIALS = 4, 8


@dataclass(frozen=True)
class Asked:
    """Questions, "" where unparsed, their golds and the Solver's answers to them.

    `rows` are those of a question among the responses, `verdicts` 1 where they agree with the gold; none if unparsed.
    """

    questions: list[str]
    golds: list[str]
    responses: Responses | None
    rows: list[range]
    verdicts: list[list[float]]


def ask(solver, questions: Sequence[str], notes: Sequence[str], number: int, generator) -> Asked:
    """Sample `number` answers to every question that has the form of one, and compare them with the gold."""
    golds = [gold_of(question, note) if question else "" for question, note in zip(questions, notes, strict=True)]
    prompts = [question + "=" for question in questions if question for _ in range(number)]
    rows, asked = [], 0
    for question in questions:
        rows.append(range(asked, asked + number) if question else range(0))
        asked += len(rows[-1])
    responses = sample(solver, ALPHABET, prompts, max_tokens=RESPONSE + 1, generator=generator) if prompts else None
    verdicts = [
        [float(answer_of(question, responses.texts[row]) == gold) for row in own]
        for question, gold, own in zip(questions, golds, rows, strict=True)
    ]
    return Asked(list(questions), golds, responses, rows, verdicts)


def propose(proposer, world: str, number: int, generator) -> tuple[list[str], list[str], Responses]:
    """`PROPOSALS` questions about each of `number` notes, "" where unparsed; their notes; the Proposer's responses."""
    notes = [note for note in (draw_note(generator) for _ in range(number)) for _ in range(PROPOSALS)]
    prompts = [f"{note}:" for note in notes]
    responses = sample(proposer, ALPHABET, prompts, max_tokens=QUESTION + 1, generator=generator)
    kinds = [*ANSWERABLE, WORLDS[world]]
    return [parsed(text, note, kinds) for text, note in zip(responses.texts, notes, strict=True)], notes, responses


def chosen_by_oracle(solver, proposer, world: str, generator) -> tuple[list[str], list[str]]:
    """Of many questions of the frozen Proposer, the answerable ones whose pass rates are nearest to one half."""
    questions, notes, _ = propose(proposer, world, CANDIDATES * NOTES, generator)
    kept = [place for place, question in enumerate(questions) if question and question[0] in ANSWERABLE]
    questions, notes = [questions[place] for place in kept], [notes[place] for place in kept]
    verdicts = ask(solver, questions, notes, TRIALS, generator).verdicts
    order = sorted(range(len(kept)), key=lambda place: abs(statistics.fmean(verdicts[place]) - 0.5))
    best = order[: NOTES * PROPOSALS]
    return [questions[place] for place in best], [notes[place] for place in best]


def scored(asked: Asked, history: DiversityHistory, settings: RoundSettings) -> list[ScoredRound]:
    """The recipe's verdict on each round; an answer is written "#7", so that no digit of a question gives it away."""
    proposals = [
        Proposal(" ".join(question), f"#{gold}", tuple(ALPHABET.ids[character] for character in question))
        if question
        else Proposal("", None)
        for question, gold in zip(asked.questions, asked.golds, strict=True)
    ]
    starts = range(0, len(proposals), PROPOSALS)
    rounds = [(proposals[at : at + PROPOSALS], asked.verdicts[at : at + PROPOSALS]) for at in starts]
    return score_rounds(rounds, history, settings)


@dataclass(frozen=True)
class Group:
    """Responses to one prompt, with the reward of each: what a group advantage is taken over.

    `prompts` (G, P), `ids`, `mask` and `log_probs` (G, T), T alike in all groups; `rewards` (G,).
    """

    prompts: Tensor
    ids: Tensor
    mask: Tensor
    log_probs: Tensor
    rewards: Tensor

    @classmethod
    def of(cls, responses: Responses, rows: Sequence[int], rewards: Sequence[float], length: int) -> "Group":
        """Some rows of the responses, padded to `length` tokens."""
        chosen, short = torch.tensor(rows), length - responses.ids.shape[1]
        padded = [
            torch.nn.functional.pad(values[chosen], (0, short))
            for values in (responses.ids, responses.mask, responses.log_probs)
        ]
        return cls(responses.prompts[chosen], *padded, torch.tensor(rewards))


def reinforce(model, optimizer, groups: Sequence[Group], *, parts: int, generator: torch.Generator) -> None:
    """GRPO: group advantages and PPO's clipped surrogate."""
    index = [number for number, group in enumerate(groups) for _ in group.rewards]
    prompts, ids, mask, old, rewards = (
        torch.cat([getattr(group, name) for group in groups])
        for name in ("prompts", "ids", "mask", "log_probs", "rewards")
    )
    advantages, _ = grpo_advantage(rewards, index, mask)

    def loss(rows: Tensor, new: Tensor) -> Tensor:
        return clipped_surrogate(old[rows], new, advantages[rows], mask[rows])

    update(model, optimizer, prompts, ids, loss, parts=parts, generator=generator)


class Game:
    """A Proposer and a Solver of one arm, and what they have done since the last record."""

    def __init__(self, setting: dict):
        self.arm, self.world = setting["arm"], setting["world"]
        self.solver = copy_of(first_solver(setting["seed"], setting.get("warm_up", SOLVER_WARM_UP)))
        self.proposer = copy_of(first_proposer(setting["seed"], WORLDS[self.world], PROPOSER_WARM_UP))
        self.solver_optimizer = torch.optim.Adam(self.solver.parameters(), lr=setting["rate"])
        self.proposer_optimizer = torch.optim.Adam(self.proposer.parameters(), lr=setting["proposer_rate"])
        self.generator = torch.Generator().manual_seed(setting["seed"])
        self.settings = RoundSettings(reward=self.arm if self.arm in TRAINED else "pasodoble")
        self.history = DiversityHistory(self.settings.history_size, self.settings.history_threshold)
        self.seen: Counter = Counter()

    def batch(self) -> list[tuple[str, Group]]:
        """`NOTES` rounds: ask, score, train the Proposer where the arm does; the questions that pass the filter."""
        if self.arm == "oracle":
            questions, notes = chosen_by_oracle(self.solver, self.proposer, self.world, self.generator)
        else:
            questions, notes, proposed = propose(self.proposer, self.world, NOTES, self.generator)
        asked = ask(self.solver, questions, notes, ANSWERS, self.generator)
        rounds = scored(asked, self.history, self.settings)
        if self.arm in TRAINED:
            groups = [
                Group.of(
                    proposed, [number * PROPOSALS + place for place in one.proposer_indices], one.rewards, QUESTION + 1
                )
                for number, one in enumerate(rounds)
                if not one.skip
            ]
            if groups:
                reinforce(self.proposer, self.proposer_optimizer, groups, parts=1, generator=self.generator)
        for place, question in enumerate(questions):
            self.seen["proposed", question[:1]] += 1
            self.seen["band", pass_rate_band(rounds[place // PROPOSALS].pass_rates[place % PROPOSALS])] += 1
        passed = [number * PROPOSALS + place for number, one in enumerate(rounds) for place in one.solver_indices]
        for place in passed:
            self.seen["passed", questions[place][0]] += 1
        return [
            (questions[place], Group.of(asked.responses, asked.rows[place], asked.verdicts[place], RESPONSE + 1))
            for place in passed
        ]

    def step(self) -> None:
        """One step of the Solver, on the first `QUESTIONS` that pass the filter."""
        kept: list[tuple[str, Group]] = []
        for _ in range(MOST_BATCHES):
            kept += self.batch()
            if len(kept) >= QUESTIONS:
                break
        kept = kept[:QUESTIONS]
        for question, _ in kept:
            self.seen["trained", question[0]] += 1
        if kept:
            groups = [group for _, group in kept]
            reinforce(self.solver, self.solver_optimizer, groups, parts=PARTS, generator=self.generator)


def counts_of(seen: Counter) -> dict[str, dict[str, int]]:
    """Questions by kind ("" is unparsed): proposed, passed by the filter, trained on; the first also by pass rate."""
    counts: dict[str, dict[str, int]] = {"proposed": {}, "passed": {}, "trained": {}, "band": {}}
    for (count, key), number in seen.items():
        counts[count][key] = number
    return counts
