"""Process reward models of the combination lock: trained on completions of its states, measured on held-out ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from combination_lock import (
    ALPHABET,
    DIGITS,
    LIMIT,
    SLOTS,
    STEP_TOKENS,
    SYMBOLS,
    Habits,
    Lock,
    Question,
    Written,
    read,
)
from policy import sample
from torch import Tensor, nn

from recipes.step_ppo.calibration import calibration_error, correlation, expected_value
from recipes.step_ppo.labels import state_value, trajectory_value

CHUNK = 256


def _sampled(policy, prompts: Sequence[str], max_tokens: int, generator: torch.Generator) -> list[str]:
    chunks = [prompts[first : first + CHUNK] for first in range(0, len(prompts), CHUNK)]
    return [
        text
        for chunk in chunks
        for text in sample(policy, ALPHABET, chunk, max_tokens=max_tokens, generator=generator).texts
    ]


class StepPRM(nn.Module):
    """P(hits among K completions) behind each step, from what the steps wrote and which symbols are still to come.

    Each (symbol, digit) has a learned soundness in (0, 1) and each symbol a learned difficulty. The product of the
    soundness of the turns so far, the sum of the difficulties ahead and the slots used up go through one hidden layer.
    """

    def __init__(self, completions: int, hidden: int = 32):
        super().__init__()
        self.soundness = nn.Embedding(len(SYMBOLS) * len(DIGITS) + 1, 1, padding_idx=len(SYMBOLS) * len(DIGITS))
        self.difficulty = nn.Embedding(len(SYMBOLS), 1)
        nn.init.constant_(self.soundness.weight, 2.0)
        nn.init.constant_(self.difficulty.weight, 0.0)
        self.layers = nn.Sequential(nn.Linear(len(SLOTS) + 4, hidden), nn.ReLU(), nn.Linear(hidden, completions + 1))

    def forward(self, symbols: Tensor, facts: Tensor, turns: Tensor) -> Tensor:
        """(B, J, K + 1) scores from (B, slots) symbols of the question, (B, J) facts written and (B, J) slots used."""
        sound = nn.functional.logsigmoid(self.soundness(facts)) * (facts < len(SYMBOLS) * len(DIGITS))[..., None]
        product = sound.cumsum(1)
        ahead = torch.arange(len(SLOTS)) >= turns[..., None]
        left = (self.difficulty(symbols)[:, None, :, 0] * ahead).sum(-1, keepdim=True)
        used = nn.functional.one_hot(turns, len(SLOTS) + 1).to(product.dtype)
        return self.layers(torch.cat([used, product, product.exp(), left], dim=-1))


def steps_of(questions: Sequence[Question], written: Sequence[Written]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(B, slots) symbols, (B, J) fact numbers, (B, J) slots used up and (B, J) mask of the steps.

    A fact is symbol x digit of the slot that was turned; a recheck is a fact of its own.
    """
    width = max(1, *(len(response.turns) for response in written))
    facts = torch.full((len(written), width), len(SYMBOLS) * len(DIGITS))
    turns = torch.zeros(len(written), width, dtype=torch.long)
    mask = torch.zeros(len(written), width, dtype=torch.bool)
    for row, (question, response) in enumerate(zip(questions, written, strict=True)):
        used = 0
        for place, (done, digit) in enumerate(zip(response.turns, response.digits, strict=True)):
            if done > used:
                facts[row, place] = question.symbols[used] * len(DIGITS) + digit
            turns[row, place], mask[row, place] = done, True
            used = done
    return torch.tensor([question.symbols for question in questions]), facts, turns, mask


@dataclass(frozen=True)
class Labelled:
    """Trajectories, and how many of K completions of each state end right.

    Attributes:
        questions, texts, written: one per trajectory; all are well-formed.
        hits: for each trajectory one number in 0..K per step; at the last step the outcome times K.
        completions: K.
    """

    questions: list[Question]
    texts: list[str]
    written: list[Written]
    hits: list[list[int]]
    completions: int


def labelled(
    policy,
    lock: Lock,
    generator: torch.Generator,
    *,
    trajectories: int,
    completions: int,
    habits: Habits | None = None,
) -> Labelled:
    """Draw trajectories and label each of their states, cut behind the step mark; malformed ones are left out.

    Args:
        habits: when given, the completions are drawn by their enumerated rate, as a binomial, and not written out.
    """
    questions = [lock.question(generator) for _ in range(trajectories)]
    drawn = _sampled(policy, [question.text for question in questions], LIMIT, generator)
    written = [read(question, text) for question, text in zip(questions, drawn, strict=True)]
    kept = [row for row in zip(questions, drawn, written, strict=True) if row[2].well_formed]
    columns = [list(column) for column in zip(*kept, strict=True)]
    if habits is None:
        hits = _completed(policy, kept, completions, generator)
    else:
        rates = [torch.tensor(habits.step_values(question, response)) for question, _, response in kept]
        hits = [torch.binomial(torch.full_like(r, completions), r, generator=generator).int().tolist() for r in rates]
    for found, response in zip(hits, columns[2], strict=True):
        found[-1] = trajectory_value(response.right, completions)
    return Labelled(*columns, hits, completions)


def _completed(policy, kept: list, completions: int, generator: torch.Generator) -> list[list[int]]:
    """Hits of completions that are written out, for every step but the last of each (question, text, written).

    A state with a wrong turn has none, since no completion can be right.
    """
    hits = [[0] * len(written.turns) for _, _, written in kept]
    for number in range(max(len(found) for found in hits) - 1):
        length = STEP_TOKENS * (number + 1)
        rows = [row for row, (*_, w) in enumerate(kept) if number < len(w.sound) - 1 and w.sound[number]]
        prompts = [kept[row][0].text + kept[row][1][:length] for row in rows for _ in range(completions)]
        texts = _sampled(policy, prompts, LIMIT - length, generator)
        for place, row in enumerate(rows):
            question, text, _ = kept[row]
            whole = [text[:length] + more for more in texts[place * completions : (place + 1) * completions]]
            hits[row][number] = state_value(whole, lambda response, q=question: read(q, response).right).value
    return hits


def train_prm(data: Labelled, *, epochs: int, seed: int) -> StepPRM:
    """Cross-entropy on the hits behind each step."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        prm = StepPRM(data.completions)
    optimizer = torch.optim.AdamW(prm.parameters(), lr=2e-2, weight_decay=1e-3)
    symbols, facts, turns, mask = steps_of(data.questions, data.written)
    hits = torch.zeros_like(turns)
    hits[mask] = torch.tensor([number for found in data.hits for number in found])
    for _ in range(epochs):
        for rows in torch.randperm(len(facts), generator=generator).split(64):
            scores = prm(symbols[rows], facts[rows], turns[rows])[mask[rows]]
            loss = nn.functional.cross_entropy(scores, hits[rows][mask[rows]])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return prm.eval().requires_grad_(False)


def prm_values(prm: StepPRM, questions: Sequence[Question], written: Sequence[Written]) -> list[list[float]]:
    """For each response the expected share of completions that end right, behind each step."""
    *inputs, mask = steps_of(questions, written)
    values = expected_value(prm(*inputs).softmax(-1))
    return [row[kept].tolist() for row, kept in zip(values, mask, strict=True)]


def oracle_values(habits: Habits, questions: Sequence[Question], written: Sequence[Written]) -> list[list[float]]:
    """For each response the enumerated completion rate behind each step."""
    return [habits.step_values(question, response) for question, response in zip(questions, written, strict=True)]


def quality(values: Sequence[Sequence[float]], data: Labelled, habits: Habits) -> dict[str, float]:
    """How well values, by trajectory and step, agree with the completions of these states, and with the oracle.

    Returns:
        Pearson's correlation with the share of completions that open the lock and with the oracle, and the expected
        calibration error over ten bins, on all states and (`_sound`) on those whose turns are all right; the share of
        pairs of a sound state and another in which the sound one has the larger value (`auc`, ties count half).
    """
    observed = _flat(data.hits) / data.completions
    oracle, values = _flat(oracle_values(habits, data.questions, data.written)), _flat(values)
    sound = torch.tensor([right for written in data.written for right in written.sound])
    found = {"auc": auc(values, sound), "states": len(values), "states_sound": int(sound.sum())}
    for name, kept in (("", torch.ones_like(sound)), ("_sound", sound)):
        found |= {
            f"correlation{name}": correlation(values[kept], observed[kept]),
            f"correlation_with_oracle{name}": correlation(values[kept], oracle[kept]),
            f"calibration_error{name}": calibration_error(values[kept], observed[kept]),
            f"mean_value{name}": values[kept].mean().item(),
            f"mean_observed{name}": observed[kept].mean().item(),
        }
    return found


def _flat(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)


def auc(values: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of (N,) values for (N,) bool labels.

    Raises:
        ValueError: one label only.
    """
    positive, negative = values[labels], values[~labels]
    if not len(positive) or not len(negative):
        raise ValueError("an area under the curve needs both labels")
    above = (positive[:, None] > negative).double() + 0.5 * (positive[:, None] == negative).double()
    return above.mean().item()
